"""Samples of a search by halving from a model of its results: which trials get one, from which.

A trial that is created once some rung has enough results waits without hyperparameters until a
worker takes it; then Optuna chooses them by the results of the highest such rung. All others have
the samples that they would have without a model. Results of earlier experiments are a model until a
rung has enough, and again beside the results of the top rung.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detslurm.searcher.events import WORST
from detslurm.searcher.hyperparameters import dimensions
from detslurm.searcher.optuna.history import KnownTrial, TrialHistory
from detslurm.searcher.sampling import Samples
from detslurm.searcher.state import Rung, SearchTrial, State

RANDOM_EVERY = 3
"""Each third trial keeps its random sample, as in BOHB, because a model may be wrong."""


@dataclass(frozen=True)
class ResultModel:
    """The model of a search: a rung teaches it with `needed` finite results or more."""

    samples: Samples
    smaller_is_better: bool
    needed: int

    def chooses(self, state: State) -> bool:
        """Whether the model, and not the stream, gives the next trial its sample."""
        if state.created % RANDOM_EVERY == 0:
            return False
        earlier = sum(known.state == "complete" for known in state.earlier_results)
        return earlier >= self.needed or self._units(state) is not None

    def history(self, state: State) -> TrialHistory:
        """The history for a sampler: the results of one rung, and the trials on their way."""
        units = self._units(state)
        scores = {
            index: score for rung in _rungs_at(state, units) for score, _, index in rung.results
        }
        known = {}
        for index, trial in enumerate(state.trials):
            if index in scores:
                report = (units or 0, self._metric(scores[index]))
                known[index] = KnownTrial(self._sample(state, index), "complete", [report])
            elif trial.status in ("assigned", "waiting") and not lacks_sample(trial):
                known[index] = KnownTrial(self._sample(state, index))
        # Trials of a lower rung were trained less, and can't be compared with them.
        is_top = units in (None, max(rung.units for b in state.brackets for rung in b.rungs))
        return TrialHistory(known, known=state.earlier_results if is_top else [])

    def _units(self, state: State) -> int | None:
        """The length of the highest rung with enough results, over all brackets together."""
        lengths = {rung.units for bracket in state.brackets for rung in bracket.rungs}
        for units in sorted(lengths, reverse=True):
            if sum(_finite_results(rung) for rung in _rungs_at(state, units)) >= self.needed:
                return units
        return None

    def _metric(self, score: float) -> float | None:
        if math.isinf(score):
            return None
        return score if self.smaller_is_better else -score

    def _sample(self, state: State, index: int) -> dict[str, Any]:
        return state.trials[index].hparams or self.samples.plan(index).hparams


def lacks_sample(trial: SearchTrial) -> bool:
    """Whether the model has yet to choose the hyperparameters of this trial."""
    return trial.modelled and trial.hparams is None


def model_of(
    searcher: Mapping[str, Any], space: Mapping[str, Any], samples: Samples
) -> ResultModel | None:
    """The model that a `searcher` section asks for; None if all samples are random."""
    most = dimensions(space)
    if searcher.get("sampler") is None or not most:
        return None
    return ResultModel(samples, searcher.get("smaller_is_better", True), 2 * (most + 1))


def _rungs_at(state: State, units: int | None) -> list[Rung]:
    """A rung of each bracket that has one at this length; the lowest of equals has all results."""
    found = (
        next((rung for rung in bracket.rungs if rung.units == units), None)
        for bracket in state.brackets
    )
    return [rung for rung in found if rung is not None]


def _finite_results(rung: Rung) -> int:
    return bisect_left(rung.results, (WORST, -math.inf, 0))
