"""A problem: a space of hyperparameters, and the loss and time of each training in it.

Nothing here imports detslurm: the processes of other projects' methods load it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Space = Mapping[str, Mapping[str, Any]]
Point = Mapping[str, Any]


class Problem(Protocol):
    """A training whose results are known. Losses are smaller for better points."""

    name: str
    space: Space
    """The hyperparameters as in experiment.yaml: of type double, int and categorical."""
    units: int
    """The length of a full training; 1 if nothing is known of shorter ones."""
    best: float
    """The truth of the best point."""
    median: float
    """The truth of a point in the middle of all."""
    full_seconds: float
    """The mean time of a full training."""

    def loss(self, point: Point, units: int, seed: int) -> float:
        """Return what a training reports after `units`; the seed decides its noise."""

    def seconds(self, point: Point, start: int, end: int) -> float:
        """Return the time of a training from `start` units to `end`."""

    def truth(self, point: Point) -> float:
        """Return the loss of a full training without noise."""


class Report(NamedTuple):
    """A training's result at a moment of virtual time."""

    seconds: float
    point: Point
    units: int
    loss: float


def regret(problem: Problem, point: Point) -> float:
    """Return the normalised regret of a point: 0 for the best, 1 for the median."""
    return (problem.truth(point) - problem.best) / (problem.median - problem.best)


def regrets(problem: Problem, reports: Iterable[Report], moments: Sequence[float]) -> list[float]:
    """Return the regret of the search's choice at each moment, 1 before there is a choice.

    The choice is the point with the lowest loss that was reported so far, after however long a
    training: so do detslurm and others choose the best trial.

    Args:
        problem: The problem.
        reports: The reports of the search, in order of time.
        moments: Seconds of virtual time, in order.
    """
    found: list[float] = []
    chosen: Report | None = None
    for report in reports:
        while len(found) < len(moments) and moments[len(found)] < report.seconds:
            found.append(_regret_of(problem, chosen))
        if len(found) == len(moments):
            return found
        if chosen is None or report.loss < chosen.loss:
            chosen = report
    return found + [_regret_of(problem, chosen)] * (len(moments) - len(found))


def _regret_of(problem: Problem, chosen: Report | None) -> float:
    return 1.0 if chosen is None else regret(problem, chosen.point)
