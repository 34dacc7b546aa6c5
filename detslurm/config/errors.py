"""Faults of a configuration, and their places: positions, problems, one exception for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from detslurm._base.display import ShownAsText

SHOWN = 20
_WIDTH = 300


class Position(NamedTuple):
    """A place in a source: a source, and 1-based line and column if it has any."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.source, self.line, self.column]
        return ":".join(str(part) for part in parts if part is not None)


class ConfigProblem(NamedTuple):
    """One thing that is wrong: where, under which key, what, and what to do about it."""

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    hint: str = ""

    @classmethod
    def at(cls, position: Position, path: str, message: str, hint: str = "") -> ConfigProblem:
        """A problem at `position`."""
        return cls(position.source, position.line, position.column, path, message, hint)

    @property
    def position(self) -> Position:
        return Position(self.file, self.line, self.column)

    def __str__(self) -> str:
        where = f"{self.position}: " + (f"{self.path}: " if self.path else "")
        hint = f"; {self.hint}" if self.hint else ""
        return _printable(where) + _clipped(self.message) + _clipped(hint)


class Noted(NamedTuple):
    """A place that a warning names: a field without effect, or what many would misread."""

    path: str
    at: Position
    advice: str = ""


class Broken(NamedTuple):
    """A broken rule: the field to point at (or the whole section), the fault, the remedy."""

    field: str | None
    message: str
    hint: str = ""


class ConfigErrors(ShownAsText, Exception):
    """All problems of a configuration at once; `str()` fits one screen."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems: tuple[ConfigProblem, ...] = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"and {len(self.problems) - SHOWN} more")
        return "\n".join(lines)


def in_order(problems: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    """Each problem once, source by source, from top to bottom."""
    once: dict[object, ConfigProblem] = {}
    for problem in problems:
        # A value that stands in one place may be checked under several paths.
        place = problem.path if problem.line is None else None
        once.setdefault((problem.position, place, problem.message), problem)
    sources = list(dict.fromkeys(problem.file for problem in once.values()))
    return sorted(once.values(), key=lambda p: (sources.index(p.file), p.line or 0, p.column or 0))


def _clipped(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _printable(text: str) -> str:
    # A file's content must not steer the terminal that shows the error.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
