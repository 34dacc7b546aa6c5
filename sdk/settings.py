"""Checks of an experiment's settings, before they are stored for good."""

from __future__ import annotations

from collections.abc import Iterable

from detslurm.sdk.errors import LifecycleError


def line(what: str, value: object) -> str:
    """A name or a label. Raises `TypeError` if it is no text, `LifecycleError` if no line."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {value!r}")
    if not (value.strip() and value.isprintable()):
        raise LifecycleError(f"{what} must be one printable line and not empty, not {value!r}")
    return value


def text(what: str, value: object) -> str:
    """Text of any number of lines, also none; raises as `line` does."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {value!r}")
    if not all(char.isprintable() or char in "\n\t" for char in value):
        raise LifecycleError(f"{what} must be printable text, not {value!r}")
    return value


def labels(values: object) -> list[str]:
    """Labels, each once and in order; raises as `line` does."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"labels must be a list of texts, not {values!r}")
    return sorted({line("a label", value) for value in values})


def whole(what: str, value: object) -> int:
    """A whole number. Raises `TypeError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    return value
