"""Where the lengths of `searcher.operations()` come from when no search decides on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from detslurm.errors import MetricError

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

    def __init__(self, lengths: Sequence[int], compared: Sequence[str] = ()) -> None:
        self._left = list(lengths)
        self._compared = compared

    def next(self) -> int | None:
        return self._left.pop(0) if self._left else None

    def metric(self, given: Any) -> Any:
        return completed_metric(given, self._compared)

    def completed(self, length: int, metric: Any) -> None:
        pass


def completed_metric(given: Any, compared: Sequence[str]) -> Any:
    """The value for `report_completed()` as a number, or as numbers by name where a search compares
    by several. Raises `MetricError` for one that lacks a name."""
    if len(compared) < 2:
        return number(given)
    names = set(given) if isinstance(given, Mapping) else set()
    if missing := [name for name in compared if name not in names]:
        raise MetricError(
            f"the search compares trials by {', '.join(compared)}: pass report_completed() a"
            f" mapping of them. {given!r} lacks {', '.join(missing)}"
        )
    return {name: number(given[name]) for name in compared}


def number(metric: Any) -> float:
    """A metric as a number; one kind of NaN, whatever it came from."""
    value = float(metric)
    return math.nan if math.isnan(value) else value
