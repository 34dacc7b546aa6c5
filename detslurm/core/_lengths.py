"""Where the lengths of `searcher.operations()` come from when no search decides on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

OWN_LENGTHS: Final = ("custom", "pbt")
"""Searchers that decide as they go how far a trial trains, without a `max_length`."""


class LengthSource(Protocol):
    """The lengths that a trial shall be trained to, one after the other."""

    def next(self) -> int | None:
        """The absolute length to train to now; None when nothing more is wanted (for now)."""

    def metric(self, given: Any) -> Any:
        """A metric as it is recorded. Raises if the value can't be a metric."""

    def completed(self, length: int, metric: Any) -> None:
        """The trial has trained to `length` and validated."""


class FixedLengths:
    """Lengths that are known from the start."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._left = list(lengths)

    def next(self) -> int | None:
        return self._left.pop(0) if self._left else None

    def metric(self, given: Any) -> Any:
        return number(given)

    def completed(self, length: int, metric: Any) -> None:
        pass


def number(metric: Any) -> float:
    """A metric as a number; one kind of NaN, whatever it came from."""
    value = float(metric)
    return math.nan if math.isnan(value) else value
