"""Show objects and errors in a terminal and in a notebook, with all text escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detslurm._base.quantities import number


class Displayed:
    """An object that is shown by its facts: in a line, and in a notebook as a list."""

    def _facts(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def __repr__(self) -> str:
        known = ((name, value) for name, value in self._facts().items() if value is not None)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in known)})"

    def _repr_html_(self) -> str:
        return html_head(type(self).__name__, self._facts())


class ShownAsText:
    """An error that a user can mend: a notebook shows its text, and no frames of ours."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


def html_head(title: str, facts: Mapping[str, Any]) -> str:
    """A title and the facts that are known, as a list; those that are None or "" are left out."""
    from html import escape

    known = ((name, value) for name, value in facts.items() if value not in ("", None))
    items = "".join(f"<li>{escape(name)}: {escape(number(value))}</li>" for name, value in known)
    return f"<p><b>{escape(title)}</b></p><ul>{items}</ul>"


def html_table(heads: Sequence[str], lines: Iterable[Iterable[Any]]) -> str:
    """A table of lines of cells; "" without lines. A value that is missing is "-"."""
    from html import escape

    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    rows = ["".join(f"<td>{escape(number(value) or '-')}</td>" for value in line) for line in lines]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>" if rows else ""


_FORMULA = re.compile(r"\s*[=+\-@]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|Infinity)")


def spreadsheet_text(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: such a text gets an apostrophe before it."""
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"
