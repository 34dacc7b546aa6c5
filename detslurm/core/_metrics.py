"""Turn what people put into metrics into plain data: numbers, text, lists and mappings."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from typing import Any, Final

from detslurm.store.run_records import MOST_STEPS

logger = logging.getLogger("detslurm.core")

_DEEPEST: Final = 100  # readers walk through values, and Python's stack ends at 1,000
_PLAIN = (float, int, str, bool, type(None))


def storable(steps: int) -> int:
    """Return the steps. Raises `ValueError` for more than readers of records take."""
    if not -MOST_STEPS <= steps <= MOST_STEPS:
        raise ValueError(f"steps_completed must be less than 2**63, not {steps}")
    return steps


def plain(values: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """A copy with every value as plain data; bytes are dropped with a warning.

    Scalars and arrays of numpy, torch and their like become numbers and lists. Raises `TypeError`
    for anything but a mapping, `ValueError` for values that are nested more than 100 deep.
    """
    result = {}
    try:
        items = values.items()
    except AttributeError:
        raise TypeError(f"a mapping of names to values is needed, not {values!r}") from None
    for name, value in items:
        if type(value) in _PLAIN:
            result[name] = value
        elif isinstance(value, bytes | bytearray):
            logger.warning("%r holds bytes: dropped", name)
        else:
            result[str(name)] = _plain_value(value, depth + 1)
    return result


def _plain_value(value: Any, depth: int) -> Any:
    if type(value) in _PLAIN:
        return value
    if depth > _DEEPEST:
        raise ValueError(f"values are nested more than {_DEEPEST} deep")
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict | Mapping):
        return plain(value, depth)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain_value(item, depth + 1) for item in value]
    # Array libraries differ in everything but this: numpy, torch, jax and tensorflow all have it.
    tolist = getattr(value, "tolist", None) or getattr(value, "numpy", None)
    if callable(tolist):
        return _plain_value(tolist(), depth)
    if isinstance(value, float | int | str):
        return value
    return str(value)
