"""Rungs of a search by halving: where they are, and the ordered results on each."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from detslurm.searcher.events import WORST, score
from detslurm.searcher.state import Rung, State


def rung_units(num_rungs: int, max_units: int, divisor: float) -> list[int]:
    """The length at which each rung stands, lowest first; the last is `max_units`."""
    return [max(int(max_units / divisor**below), 1) for below in reversed(range(num_rungs))]


def longer_units(units: Sequence[int], max_units: int, divisor: float) -> list[int]:
    """The rungs of a bracket whose trials may train longer than before, to `max_units`: the same,
    and above them each `divisor` times as far as the one below, the last at `max_units`."""
    longer = [*units]
    while longer[-1] < max_units:
        longer.append(min(max(int(longer[-1] * divisor), longer[-1] + 1), max_units))
    return longer


class Ranking(Protocol):
    """The order of the results on a rung. A trial's `rung_results` say which were the worst."""

    worst: Any  # what is compared of a trial that failed

    def compared(self, metric: Any, metrics: Mapping[str, Any]) -> Any:
        """The part of a report that is compared."""

    def enter(self, state: State, rung: Rung, index: int, compared: Any) -> int:
        """Enter a trial's result; its place, counted from the best."""

    def remove(self, state: State, rungs: list[Rung], index: int) -> None:
        """Take all results of a trial out of the rungs."""

    def best(self, rung: Rung, count: int) -> list[int]:
        """The best `count` trials, but for those that have diverged."""

    def newly_best(self, rung: Rung, count: int, promoted: int) -> Iterable[int]:
        """The trials of the best `count` to promote, best first; `promoted` trials were before.

        Some of them may be among those.
        """


class ByMetric:
    """One metric decides; of equals the earlier is better, with `before_equals` the later."""

    worst = WORST

    def __init__(self, smaller_is_better: bool, before_equals: bool) -> None:
        self._smaller_is_better, self._before_equals = smaller_is_better, before_equals

    def compared(self, metric: Any, metrics: Mapping[str, Any]) -> float:
        return score(metric, self._smaller_is_better)

    def enter(self, state: State, rung: Rung, index: int, compared: float) -> int:
        order = -rung.seen if self._before_equals else rung.seen
        rung.seen += 1
        result = (compared, order, index)
        place = bisect.bisect_left(rung.results, result)
        rung.results.insert(place, result)
        trial = state.trials[index]
        trial.rung_results = [*trial.rung_results, (compared, order)]
        return place

    def remove(self, state: State, rungs: list[Rung], index: int) -> None:
        trial = state.trials[index]
        for rung, (compared, order) in zip(rungs, trial.rung_results, strict=False):
            del rung.results[bisect.bisect_left(rung.results, (compared, order, index))]
        trial.rung_results = []

    def best(self, rung: Rung, count: int) -> list[int]:
        return [index for compared, _, index in rung.results[:count] if compared != WORST]

    def newly_best(self, rung: Rung, count: int, promoted: int) -> Iterable[int]:
        return (rung.results[count - 1][2],)  # the ones above it were among them before
