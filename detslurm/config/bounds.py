"""The bound that a constraint sets for a metric, such as `<= 40`."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_TEXT = re.compile(r"\s*(<=|>=|<|>)\s*(\S+)\s*")


class Bound(NamedTuple):
    """An operator (`<=`, `>=`, `<`, `>`) and the finite number on its right."""

    operator: str
    limit: float

    def excess(self, value: float) -> float:
        """Return by how much a finite value breaks the bound; 0 or less if it keeps the bound."""
        above = value - self.limit if "<" in self.operator else self.limit - value
        # `< 40` doesn't allow 40.
        return above or (0.0 if "=" in self.operator else math.ulp(0.0))

    @property
    def kept(self) -> float:
        """A value that keeps the bound."""
        room = 1 + abs(self.limit)
        return self.limit - room if "<" in self.operator else self.limit + room


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
