"""Several metrics and constraints: which results are better than others, and the best of many.

A result has a score for each metric, of which smaller is better, and the violation of all
constraints together. One result dominates another if it violates less; of two that keep all
constraints, if it has no worse score and at least one better. The results that none dominates are
the first front, or rank 0; those that only results of rank 0 dominate have rank 1, and so on.
"""

from __future__ import annotations

import bisect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from detslurm.config.bounds import Bound, bound_of
from detslurm.searcher.events import WORST, finite, score


class Result(NamedTuple):
    """The part of a trial that is compared with others.

    Attributes:
        violation: The sum of the amounts by which constraints are broken; 0 if all are kept.
        scores: A finite number for each metric, the smaller the better.
    """

    violation: float
    scores: tuple[float, ...]


WORST_RESULT = Result(WORST, ())
"""A result that lacks a finite number for a metric or a constraint: all others dominate it."""


class Objective(NamedTuple):
    """A metric that a search compares its trials by."""

    name: str
    smaller_is_better: bool = True


class Objectives(NamedTuple):
    """All that a search compares its trials by.

    Attributes:
        metrics: The metrics, at least one. The first is the searcher's `metric`.
        constraints: The bounds that trials have to keep, by the metric's name.
    """

    metrics: tuple[Objective, ...]
    constraints: Mapping[str, Bound]

    @classmethod
    def of(cls, searcher: Mapping[str, Any]) -> Objectives:
        """Return those of a resolved `searcher` section."""
        given = searcher.get("metrics") or [
            {"name": searcher.get("metric"), "smaller_is_better": searcher.get("smaller_is_better")}
        ]
        bounds = {k: bound_of(text) for k, text in (searcher.get("constraints") or {}).items()}
        return cls(
            tuple(Objective(m["name"], m.get("smaller_is_better") is not False) for m in given),
            {name: bound for name, bound in bounds.items() if bound is not None},
        )

    @property
    def single(self) -> bool:
        """Whether one metric alone decides."""
        return len(self.metrics) == 1 and not self.constraints

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all metrics, those of constraints after the others."""
        return tuple(dict.fromkeys((*(metric.name for metric in self.metrics), *self.constraints)))

    def result(self, values: Mapping[str, Any]) -> Result:
        """Return the result of a trial by its metrics, which may have any `values`."""
        scores = tuple(score(values.get(m.name), m.smaller_is_better) for m in self.metrics)
        violation = sum((max(one, 0.0) for one in self.excesses(values).values()), 0.0)
        return WORST_RESULT if WORST in (violation, *scores) else Result(violation, scores)

    def excesses(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Return by how much each constraint is broken; 0 or less if it is kept, infinite if its
        metric is not a finite number."""
        known = [
            (name, bound, finite(values.get(name))) for name, bound in self.constraints.items()
        ]
        return {
            name: WORST if value is None else bound.excess(value) for name, bound, value in known
        }


def dominates(one: Result, other: Result) -> bool:
    """Return whether `one` result is better than the `other` beyond doubt."""
    if one.violation or other.violation:
        return one.violation < other.violation
    return one.scores != other.scores and all(map(operator.le, one.scores, other.scores))


def front(results: Sequence[Result]) -> list[int]:
    """Return the positions of the best results, in ascending order: the Pareto front; empty if no
    result keeps all constraints."""
    best: list[int] = []
    for result, equals in _from_the_best(results):
        if result.violation:
            break
        if not _dominated(result, reversed(best), results.__getitem__):
            best += equals
    return sorted(best)


def fronts(results: Sequence[Result]) -> list[list[int]]:
    """Return the positions of all results by their rank, each front in ascending order."""
    found: list[list[int]] = []
    for result, equals in _from_the_best(results):
        rank = _rank(found, result, results.__getitem__)
        if rank == len(found):
            found.append([])
        found[rank] += equals
    return [sorted(one) for one in found]


def add_to_fronts(found: list[list[int]], new: int, result: Callable[[int], Result]) -> None:
    """Add the result of the name `new` to fronts, in place: results that it dominates come into
    later fronts. This costs less than `fronts()` of all results."""
    rank, arriving = _rank(found, result(new), result), [new]
    while arriving and rank < len(found):
        leaving = [i for i in found[rank] if _dominated(result(i), arriving, result)]
        staying = sorted({*found[rank]} - {*leaving})
        if not staying:  # the whole front is one rank worse, and so are all after it
            break
        found[rank] = sorted(staying + arriving)
        rank, arriving = rank + 1, leaving
    if arriving:
        found.insert(rank, arriving)


def best_first(found: Iterable[list[int]], result: Callable[[int], Result]) -> Iterator[int]:
    """Yield the names of results from the best to the worst, of fronts in ascending order.

    Within a front, results come first whose neighbours along the front are far away (the crowding
    distance of NSGA-II), so that the first few represent the whole front. Of equals the earlier
    name comes first.
    """
    for one in found:
        distance = dict(zip(one, _crowding([result(i).scores for i in one]), strict=True))
        yield from sorted(one, key=lambda index: -distance[index])


def _from_the_best(results: Sequence[Result]) -> Iterator[tuple[Result, Iterator[int]]]:
    """Each result with the positions that it has; in this order none dominates one before it."""
    order = sorted(range(len(results)), key=results.__getitem__)
    return groupby(order, key=results.__getitem__)


def _dominated(this: Result, by: Iterable[int], result: Callable[[int], Result]) -> bool:
    return any(dominates(result(index), this) for index in by)


def _rank(found: list[list[int]], this: Result, result: Callable[[int], Result]) -> int:
    # A front that has a result better than this one comes after fronts that have one, too.
    return bisect.bisect_left(
        found, True, key=lambda one: not _dominated(this, reversed(one), result)
    )


def _crowding(scores: Sequence[tuple[float, ...]]) -> list[float]:
    """The crowding distance of each of the scores of one front; infinite at its ends."""
    distance = [0.0] * len(scores)
    for column in zip(*scores, strict=True):
        order = sorted(range(len(column)), key=column.__getitem__)
        width = column[order[-1]] - column[order[0]]
        if not 0 < width < math.inf:
            continue
        distance[order[0]] = distance[order[-1]] = math.inf
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            distance[index] += (column[after] - column[before]) / width
    return distance
