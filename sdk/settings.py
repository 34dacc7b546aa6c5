"""Checks of an experiment's settings, before they are stored for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detslurm.sdk.errors import LifecycleError


def line(what: str, value: object) -> str:
    """A name or a label. Raises `TypeError` if it is no text, `LifecycleError` if no line."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {value!r}")
    if not (value.strip() and value.isprintable()):
        raise LifecycleError(f"{what} must be one printable line and not empty, not {value!r}")
    return value


def model_name(value: object) -> str:
    """A model's name; raises as `line` does."""
    name = line("a model's name", value)
    if "/" in name or name.isdigit() or name != name.strip():
        raise LifecycleError(
            f"a model's name has no slash and no space around it, and is not a number: {name!r}"
        )
    return name


def data(what: str, value: object) -> dict[str, Any]:
    """Plain data by name, as JSON has it. Raises `TypeError` if it is none."""
    from detslurm.store.frame import decode_json, encode_json

    try:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise TypeError("it must be a mapping of texts to values")
        plain: dict[str, Any] = decode_json(encode_json(dict(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{what} must be plain data, as JSON has it: {error}") from None
    return plain


def text(what: str, value: object) -> str:
    """Text of any number of lines, also none; raises as `line` does."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, not {value!r}")
    if not all(char.isprintable() or char in "\n\t" for char in value):
        raise LifecycleError(f"{what} must be printable text, not {value!r}")
    return value


def folder(what: str, value: object) -> str:
    """The name of a workspace or a project; raises as `line` does."""
    name = line(what, value)
    if "/" in name:
        raise LifecycleError(f"{what} has no slash in its name, as {name!r} has")
    return name


def labels(values: object) -> list[str]:
    """Labels, each once and in order; raises as `line` does."""
    return sorted({line("a label", value) for value in as_list("labels", values)})


def as_list(what: str, values: object) -> list[Any]:
    """The members of a list. Raises `TypeError` for a text, whose members are its characters."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a list, not {values!r}")
    return list(values)


def whole(what: str, value: object) -> int:
    """A whole number. Raises `TypeError`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be a whole number, not {value!r}")
    return value


def number(what: str, value: object) -> float:
    """A number. Raises `TypeError`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{what} must be a number, not {value!r}")
    return value
