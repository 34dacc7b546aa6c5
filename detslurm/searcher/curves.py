"""Learning curves for simulations: what a trial's metric would be after a number of units."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from typing import Protocol

from detslurm.searcher.trials import TrialPlan


class Curves(Protocol):
    """The metrics of trials that a simulation does not run."""

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        """The metric of a trial that has trained for `units`."""

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        """How long it trains from `start` units to `end`."""


class Synthetic:
    """Curves that fall like a power of the units, each to its own floor at its own rate.

    A trial's curve depends on its seed, and on `salt`, which several metrics differ in; trials
    also differ in speed, by 0.3 at most.
    """

    def __init__(
        self, smaller_is_better: bool = True, unit_seconds: float = 1.0, *, salt: int = 0
    ) -> None:
        self._salt = salt
        self._sign = 1.0 if smaller_is_better else -1.0
        self._unit_seconds = unit_seconds
        self._shapes: dict[int, tuple[float, float, float]] = {}

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        floor, rate, _ = self._shape(plan, index)
        loss = floor + (1.0 - floor) * math.pow(1.0 + units, -rate)
        return loss if self._sign > 0 else 1.0 - loss

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        return (end - start) * self._unit_seconds * self._shape(plan, index)[2]

    def _shape(self, plan: TrialPlan, index: int) -> tuple[float, float, float]:
        if index not in self._shapes:
            stream = random.Random(plan.seed + self._salt)
            self._shapes[index] = (
                stream.uniform(0.05, 0.6),
                stream.uniform(0.1, 0.8),
                stream.uniform(0.7, 1.3),
            )
        return self._shapes[index]


class Recorded:
    """Curves of trials that have run, as points of units and metric; trial k follows the k-th,
    and after the last one the first again."""

    def __init__(
        self, curves: Sequence[Sequence[tuple[int, float]]], unit_seconds: float = 1.0
    ) -> None:
        if not curves or not all(curves):
            raise ValueError("a recorded curve has at least one point")
        self._curves = [sorted(curve, key=lambda point: point[0]) for curve in curves]
        self._unit_seconds = unit_seconds

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        curve = self._curves[index % len(self._curves)]
        place = bisect.bisect_right(curve, units, key=lambda point: point[0])
        return curve[max(place - 1, 0)][1]

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        return (end - start) * self._unit_seconds
