"""The order of a rung's results where several metrics, or constraints, decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby, islice
from typing import Any

from detslurm.searcher.objectives import (
    WORST_RESULT,
    Objectives,
    Result,
    add_to_fronts,
    best_first,
    fronts,
)
from detslurm.searcher.state import Rung, State


class ByFronts:
    """Results by their non-dominated rank; within a front, those with far neighbours come first.

    A new result may change the ranks of all others, so that entering it takes a time that grows
    with the number of results.
    """

    worst = WORST_RESULT

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives

    def compared(self, metric: Any, metrics: Mapping[str, Any]) -> Result:
        return self._objectives.result({self._objectives.metrics[0].name: metric, **metrics})

    def enter(self, state: State, rung: Rung, index: int, compared: Result) -> int:
        found = _fronts(rung)
        rung.compared[index] = compared
        add_to_fronts(found, index, rung.compared.__getitem__)
        _fill(rung, found)
        trial = state.trials[index]
        trial.rung_results = [*trial.rung_results, (compared.violation, rung.seen)]
        rung.seen += 1
        rank = next(number for number, front in enumerate(found) if index in front)
        before = sum(map(len, found[:rank]))
        return before + list(best_first([found[rank]], rung.compared.__getitem__)).index(index)

    def remove(self, state: State, rungs: list[Rung], index: int) -> None:
        trial = state.trials[index]
        for rung in rungs[: len(trial.rung_results)]:
            del rung.compared[index]
            left = sorted(rung.compared)
            found = fronts([rung.compared[one] for one in left])
            _fill(rung, [[left[place] for place in front] for front in found])
        trial.rung_results = []

    def best(self, rung: Rung, count: int) -> list[int]:
        order = islice(best_first(_fronts(rung), rung.compared.__getitem__), count)
        return [index for index in order if rung.compared[index] != WORST_RESULT]

    def newly_best(self, rung: Rung, count: int, promoted: int) -> Iterable[int]:
        # Results change the order of earlier ones: without this limit many more than the best
        # would be promoted, because each is among them for a moment.
        if promoted >= count:
            return ()
        return islice(best_first(_fronts(rung), rung.compared.__getitem__), count)


def _fronts(rung: Rung) -> list[list[int]]:
    return [[one[2] for one in front] for _, front in groupby(rung.results, lambda one: one[0])]


def _fill(rung: Rung, found: list[list[int]]) -> None:
    rung.results = [(float(rank), 0, one) for rank, front in enumerate(found) for one in front]
