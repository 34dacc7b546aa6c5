"""Values that users chose, such as hyperparameters, as every reader of JSON takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

EXACT: Final = (1 << 53) - 1
"""The largest integer that readers of JSON keep whose numbers are doubles, as browsers do."""


def plain(value: Any) -> Any:
    """The same value of numbers, texts, lists and mappings alone.

    Infinities become "inf" and "-inf", NaN None, integers that a double may not hold texts of their
    digits, and what is no Unicode is escaped.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return finite(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= EXACT else str(value)
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(str(value))


def finite(value: float) -> float | str | None:
    """A number as JSON can hold it."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return None if math.isnan(value) else value
