"""Values that users chose, such as hyperparameters, as every reader of JSON takes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

EXACT: Final = (1 << 53) - 1
"""The largest integer that readers of JSON keep whose numbers are doubles, as browsers do."""


def chosen(value: Any) -> Any:
    """As `plain`, and integers that a double may not hold are texts of their digits."""
    return _built(value, lambda one: one if abs(one) <= EXACT else str(one))


def plain(value: Any) -> Any:
    """The same value of numbers, texts, lists and mappings alone.

    Infinities become "inf" and "-inf", NaN None, and bytes that are no Unicode are escaped.
    """
    return _built(value, lambda one: one)


def _built(value: Any, integer: Callable[[int], Any]) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return finite(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): _built(item, integer) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_built(item, integer) for item in value]
    return plain(str(value))


def finite(value: float) -> float | str | None:
    """A number as JSON can hold it."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return None if math.isnan(value) else value
