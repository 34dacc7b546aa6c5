"""The bound that a constraint sets for a metric, such as `<= 40`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_TEXT = re.compile(r"\s*(<=|>=|<|>)\s*(\S+)\s*")


class Bound(NamedTuple):
    """An operator of `OPERATORS` and the finite number on its right."""

    operator: str
    limit: float

    def excess(self, value: float) -> float:
        """Return by how much a finite value breaks the bound: 0 if it keeps the bound."""
        if OPERATORS[self.operator](value, self.limit):
            return 0.0
        return abs(value - self.limit) or math.ulp(0.0)  # `< 40` doesn't allow 40

    def __str__(self) -> str:
        return f"{self.operator} {self.limit:g}"


def bound_of(text: str) -> Bound | None:
    """Return the bound that a text names; None if it is no bound."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    try:
        limit = float(found[2])
    except ValueError:
        return None
    return Bound(found[1], limit) if math.isfinite(limit) else None
