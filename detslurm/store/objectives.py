"""How results are compared where a search has several metrics, or constraints.

The record is small and light to import; the comparison itself is `detslurm.searcher.objectives`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

if TYPE_CHECKING:
    from detslurm.searcher.objectives import Objectives, Result

T = TypeVar("T")


class ObjectiveRecord(msgspec.Struct, frozen=True, gc=False):
    """One of the metrics of a search."""

    name: str
    smaller_is_better: bool = True  # whether its best value is the smallest


class SeveralObjectives(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metrics and constraints of a search that one metric alone does not decide."""

    metrics: tuple[ObjectiveRecord, ...]  # the first is the searcher's metric
    # The bounds, such as "<= 40", by the metric's name.
    constraints: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, searcher: Mapping[str, Any]) -> Self | None:
        """Those of a resolved `searcher` section; None where one metric decides."""
        from detslurm.searcher.objectives import Objectives

        found = Objectives.of(searcher)
        if found.single:
            return None
        metrics = tuple(ObjectiveRecord(*metric) for metric in found.metrics)
        return cls(metrics, dict(searcher.get("constraints") or {}))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all metrics, those of constraints after the others."""
        return tuple(dict.fromkeys((*(metric.name for metric in self.metrics), *self.constraints)))

    def comparison(self) -> ObjectiveComparison:
        """The form that compares results by these."""
        from detslurm.searcher.objectives import Objectives

        return ObjectiveComparison(Objectives.of(msgspec.to_builtins(self)))


def objectives_of(
    metric: str | None, several: SeveralObjectives | None, *, smaller_is_better: bool
) -> SeveralObjectives | None:
    """Several objectives, or the one metric as such; None without a metric."""
    if several is not None or metric is None:
        return several
    return SeveralObjectives((ObjectiveRecord(metric, smaller_is_better),))


class ObjectiveComparison:
    """Compares metrics by several objectives. Metrics are mappings of values by name."""

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives

    def result(self, metrics: Mapping[str, Any]) -> Result | None:
        """What is compared; None where a metric or a constraint has no finite value."""
        from detslurm.searcher.objectives import WORST_RESULT

        found = self._objectives.result(metrics)
        return None if found == WORST_RESULT else found

    def best(self, given: Iterable[tuple[Mapping[str, Any], T]]) -> T | None:
        """The one that breaks constraints least, of these the best by the first metric, then by the
        next; the first of equals. It is on the front if any of them is."""
        results, rated = self._rated(given)
        best = min(range(len(rated)), key=results.__getitem__, default=None)
        return rated[best] if best is not None else None

    def best_first(self, given: Iterable[tuple[Mapping[str, Any], T]]) -> list[T]:
        """All that have a result: front by front, each by the first metric, then by the next."""
        from detslurm.searcher.objectives import fronts

        results, rated = self._rated(given)
        order = [sorted(one, key=results.__getitem__) for one in fronts(results)]
        return [rated[place] for one in order for place in one]

    def front(self, given: Iterable[tuple[Mapping[str, Any], T]]) -> list[T]:
        """The Pareto front, by the first metric; empty where none keeps all constraints."""
        from detslurm.searcher.objectives import front

        results, rated = self._rated(given)
        return [rated[place] for place in sorted(front(results), key=results.__getitem__)]

    def joined(
        self, front: Sequence[dict[str, float]], new: dict[str, float]
    ) -> list[dict[str, float]] | None:
        """A front with one more; None where one of the front dominates or equals the new one.

        Where none keeps all constraints, the front is of those that break them least.
        """
        from detslurm.searcher.objectives import fronts

        known = [*front, new]
        results = [self._objectives.result(metrics) for metrics in known]
        best = fronts(results)[0]
        if len(front) not in best or results[-1] in results[:-1]:
            return None
        return [known[place] for place in best]

    def _rated(
        self, given: Iterable[tuple[Mapping[str, Any], T]]
    ) -> tuple[Sequence[Result], Sequence[T]]:
        pairs = ((self.result(metrics), one) for metrics, one in given)
        rated = [(result, one) for result, one in pairs if result is not None]
        return [result for result, _ in rated], [one for _, one in rated]
