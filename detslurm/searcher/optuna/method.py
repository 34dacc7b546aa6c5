"""optuna: a sampler of Optuna's suggests each trial, when a worker takes it and not before.

The fold takes suggestions and verdicts as they come; to make them is the bridge's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detslurm.searcher.events import Sampled, Validated, finite
from detslurm.searcher.independent import IndependentTrials
from detslurm.searcher.method import length_of
from detslurm.searcher.optuna.history import KnownTrial, TrialHistory
from detslurm.searcher.state import SearchTrial, State

_ENDS = {"completed": "complete", "stopped": "pruned"}


class OptunaMethod(IndependentTrials):
    """`max_trials` trials whose hyperparameters depend on how the earlier ones went."""

    samples_late = True

    def __init__(self, searcher: Mapping[str, Any], space: Mapping[str, Any], seed: int) -> None:
        super().__init__(searcher, searcher["max_trials"])
        self.replaces = True
        self._unit = length_of(searcher)[1]
        self._space, self._seed = space, seed

    def start(self, state: State) -> None:
        state.history = TrialHistory()
        super().start(state)

    def train_on(self, state: State, index: int) -> None:
        history = _history(state)
        if index in history.trials:
            history.trials[index].state = "running"
            history.order.remove(~index)
        super().train_on(state, index)

    def lacks_sample(self, trial: SearchTrial) -> bool:
        return trial.hparams is None

    def history(self, state: State) -> TrialHistory:
        return msgspec.structs.replace(_history(state), known=state.earlier_results)

    def sampled(self, state: State, event: Sampled) -> None:
        trial, history = state.trials[event.trial], _history(state)
        late = event.after is not None and event.after != len(history.trials)
        if trial.hparams is not None or trial.status == "closed" or late:
            return
        trial.hparams = event.hparams
        history.trials[event.trial] = KnownTrial(event.hparams)
        history.order.append(event.trial)
        history.generators = event.generators

    def validated(self, state: State, index: int, units: int, event: Validated) -> None:
        trial, known = state.trials[index], _history(state).trials.get(index)
        if known is None:
            return
        last = known.reports[-1][0] if known.reports else -1
        if event.length is not None:
            # The end of the trial's one operation; its unit may be another one than of reports.
            trial.reached, units = max(trial.reached, units), max(units, last + 1)
        elif self.target_length and self._unit == self.searcher.get("time_metric"):
            # On its way: its chief reports the end of the operation itself.
            trial.reached = max(trial.reached, min(units, self.target_length - 1))
        if units <= last:
            return  # reported before, by a run that was lost
        trial.metric, trial.metrics = finite(event.metric), event.metrics
        trial.stop = event.stop
        known.reports.append((units, trial.metric))
        known.metrics = event.metrics
        known.notes.update(event.notes)

    def closed(self, state: State, index: int) -> None:
        history = _history(state)
        if index in history.trials:
            outcome = state.trials[index].outcome or ""
            history.trials[index].state = _ENDS.get(outcome, "failed")  # type: ignore[assignment]
            history.order.append(~index)
        super().closed(state, index)

    def next_report(self, state: State, index: int) -> int | None:
        known = _history(state).trials.get(index)
        return known.reports[-1][0] + 1 if known and known.reports else 0

    def judged(self, state: State, index: int, event: dict[str, Any]) -> dict[str, Any]:
        """The event of a report with the pruner's verdict; imports Optuna if there is a pruner."""
        if not self.searcher.get("pruner") or "time" not in event:
            return event
        from detslurm.searcher.optuna.bridge import Bridge

        known = _history(state).trials.get(index)
        if known is None:
            return event
        bridge = Bridge(self.searcher, self._space, self._seed)
        stop, notes = bridge.judge(
            _history(state), index, int(event["time"]), finite(event["metric"])
        )
        return {**event, "stop": stop, "notes": notes}


def _history(state: State) -> TrialHistory:
    assert state.history is not None
    return state.history
