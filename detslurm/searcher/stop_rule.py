"""The rule of `searcher.stop`: when a search has found enough, or finds nothing better any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from detslurm._base.quantities import counted
from detslurm.searcher.events import WORST, finite, score
from detslurm.searcher.state import Leader, State


class StopRule(msgspec.Struct, frozen=True, kw_only=True):
    """When the search ends; reports that are not finite are no results.

    Attributes:
        metric: The name of the searcher's metric.
        smaller_is_better: Whether its best value is the smallest.
        target: A report at least as good as this ends the search.
        no_better_for: So does this number of trials that have closed since the best report.
    """

    metric: str
    smaller_is_better: bool = True
    target: float | None = None
    no_better_for: int | None = None

    @classmethod
    def of(cls, searcher: Mapping[str, Any]) -> Self | None:
        """The rule of a resolved `searcher` section; None if it has none."""
        given = searcher.get("stop")
        if not given:
            return None
        smaller_is_better = searcher.get("smaller_is_better", True)
        return cls(metric=searcher["metric"], smaller_is_better=smaller_is_better, **given)

    def counts(self, state: State, metric: Any) -> bool:
        """Whether a report of this metric changes anything: it is the best, or the target."""
        if self.no_better_for is None:
            return self._is_reached_by(metric)
        best = WORST if state.leader is None else self._score(state.leader.metric)
        return self._score(metric) < best

    def reported(self, state: State, index: int, metric: Any) -> None:
        """Take in a trial's report of the metric."""
        value = finite(metric)
        if value is not None and self.counts(state, value):
            state.leader = Leader(trial=index, metric=value, closed=state.closed_with_results)

    def ends(self, state: State) -> bool:
        """Whether the search ends now."""
        leader = state.leader
        if leader is None:
            return False
        tired = self.no_better_for is not None and self._closed_since(state) >= self.no_better_for
        return tired or self._is_reached_by(leader.metric)

    def reason(self, state: State, trial_ids: Sequence[int]) -> str | None:
        """The rule by which the search ended, with the trial and the metric; None for none."""
        leader = state.leader
        if leader is None or not state.ended:
            return None
        reported = f"trial {trial_ids[leader.trial]} reported {self.metric} {leader.metric:.6g}"
        if self._is_reached_by(leader.metric):
            return f"searcher.stop.target: {reported}, and the target is {self.target}"
        closed = counted(self.no_better_for or 0, "trial")
        return f"searcher.stop.no_better_for: {closed} closed since {reported}, the best"

    def _closed_since(self, state: State) -> int:
        """How many trials have closed since the best report, apart from the trial that made it."""
        if state.leader is None:
            return 0
        own = state.trials[state.leader.trial].closed_with_result
        return state.closed_with_results - state.leader.closed - own

    def _is_reached_by(self, metric: Any) -> bool:
        return self.target is not None and self._score(metric) <= self._score(self.target)

    def _score(self, metric: Any) -> float:
        return score(metric, self.smaller_is_better)
