"""A search as a fold: the same configuration and the same events give the same state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from detslurm._base.states import RunOutcome
from detslurm.searcher.events import (
    Event,
    Extended,
    KnownResults,
    Operations,
    Reported,
    RunEnded,
    Sampled,
    Validated,
    WorkRequested,
    read_event,
)
from detslurm.searcher.method import Method, length_of
from detslurm.searcher.methods import method_of
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.searcher.sampling import Samples
from detslurm.searcher.state import RETURNED, State
from detslurm.searcher.stop_rule import StopRule
from detslurm.searcher.trials import TrialPlan

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(State)

_UNKNOWN: Mapping[int, float] = {}

# A trial that lost its workers before it had hyperparameters is not to blame for that. It comes
# back more often than `max_restarts`, but not without end, because they may die of the sampler.
_UNSAMPLED_LOSSES = 20

# How a run's outcome closes its trial; after all others the trial goes on.
_CLOSED_BY: dict[RunOutcome, RunOutcome] = {
    "completed": "completed",
    "out_of_ops": "completed",
    "stopped": "completed",
    "error": "error",
    "non_retryable": "error",
    "lost": "error",
    "canceled": "canceled",
    "killed": "canceled",
    "invalid_hp": "invalid_hp",
}


class Search:
    """The search of one experiment as a pure function of its events: methods get its `state`, and
    a trial's `index` in order of creation. It is an `IndexError` if there is no such trial.

    Args:
        config: The resolved configuration, as plain data.

    Example:
        from detslurm.searcher import Search

        config = {
            "searcher": {"name": "random", "metric": "loss", "max_trials": 2},
            "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
            "reproducibility": {"experiment_seed": 7},
        }
        search = Search(config)
        plan = search.plan(search.initial(), 0)
        assert 0.0 <= plan.hparams["lr"] < 1.0
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.searcher: Mapping[str, Any] = config["searcher"]
        self.space: Mapping[str, Any] = config.get("hyperparameters") or {}
        self.seed = int((config.get("reproducibility") or {}).get("experiment_seed") or 0)
        self.max_restarts = int(config.get("max_restarts", 5))
        self.samples = Samples(self.searcher, self.space, self.seed)
        self.method: Method = method_of(self.searcher, self.space, self.samples, self.seed)
        self.stop_rule = StopRule.of(self.searcher)

    @property
    def name(self) -> str:
        """The searcher's name in the configuration."""
        return str(self.searcher["name"])

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return str(self.searcher["metric"])

    @property
    def smaller_is_better(self) -> bool:
        """Whether the best metric is the smallest."""
        return self.method.smaller_is_better

    @property
    def compares_one(self) -> bool:
        """Whether one metric alone decides, and no constraint."""
        return self.method.objectives.single

    @property
    def time_metric(self) -> str | None:
        """The metric by which reports are placed in time, if the configuration names any."""
        return self.searcher.get("time_metric")

    @property
    def unit(self) -> str | None:
        """The unit of all lengths; None if the user's code alone knows."""
        round_unit = length_of(self.searcher, "length_per_round")[1]
        return length_of(self.searcher)[1] or round_unit or self.searcher.get("unit")

    @property
    def concurrency(self) -> int:
        """How many trials run side by side at first: that many workers have work, and may run."""
        first = len(self.initial().waiting())
        limit = int(self.searcher.get("max_concurrent_trials", 16) or first)
        return min(limit, first)

    @property
    def judges_reports(self) -> bool:
        """Whether validation reports may stop a trial; `next_report` decides which ones count."""
        return self.method.judges_reports

    def initial(self) -> State:
        """Return the state before any event: the first trials are created and wait."""
        state = State()
        self.method.start(state)
        state.done = self.method.over(state)
        return state

    def apply(self, state: State, events: Iterable[Mapping[str, Any]]) -> None:
        """Fold `events` of the search's log into the state, in place and in order; an event that
        doesn't fit changes nothing."""
        for plain in events:
            event = read_event(plain)
            if event is not None and not state.done:
                self._apply(state, event)
                rule = None if state.begins_nothing else self.stop_rule
                if rule is not None and rule.ends(state):
                    state.end()
                state.done = self.method.over(state)

    def dump(self, state: State) -> bytes:
        """Return a state as bytes."""
        return _ENCODER.encode(state)

    def load(self, data: bytes) -> State:
        """Return the state of which `dump()` made `data`."""
        return _DECODER.decode(data)

    def may_come_late(self, state: State, events: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether `events` still count that another process commits, maybe after their own
        has died.

        A trial's report and the end of a run count only while that run is the trial's last, and a
        request for work only until its worker asks again. A request that comes after its process
        has died gives the worker a trial as if it had come before: a worker that is started in its
        place asks for that trial, else the trial is lost like those of other dead workers.
        """
        return all(self._may_come_late(state, read_event(plain)) for plain in events)

    @staticmethod
    def _may_come_late(state: State, event: Event | None) -> bool:
        if isinstance(event, WorkRequested):
            return event.after == state.requests.get(event.worker, 0)
        if isinstance(event, Validated | Reported | RunEnded):
            return event.fencing_token is not None
        return event is not None  # of all others, the first one stands

    def plan(self, state: State, index: int) -> TrialPlan:
        """Return what a trial trains: drawn in the order of creation, or as the state has it."""
        trial = state.trials[_within(state, index)]
        plan = self.samples.plan(index)
        hparams = plan.hparams
        if trial.hparams is not None:
            from detslurm.config.secret_values import restored_sample  # only here: few have it

            hparams = restored_sample(trial.hparams, self.space)
        return TrialPlan(
            hparams=hparams,
            seed=plan.seed,
            request_id=trial.request_id or plan.request_id,
        )

    def progress(self, state: State, shares: Mapping[int, float] = _UNKNOWN) -> float:
        """Return the part of the search that is done, from 0 to 1. `shares` has the part that open
        trials have done of what they were asked for, by index, as far as their own reports show it;
        none by default."""
        return 1.0 if state.done else min(max(self.method.progress(state, shares), 0.0), 1.0)

    def unsampled(self, state: State) -> list[int]:
        """Return trials with a worker, but without hyperparameters: a sampler has to draw them."""
        if not self.method.samples_late:
            return []
        lacks = self.method.lacks_sample
        return sorted(i for i in state.workers.values() if lacks(state.trials[i]))

    def history(self, state: State) -> TrialHistory:
        """Return what a sampler has to know to draw hyperparameters."""
        return self.method.history(state)

    def judged(self, state: State, event: dict[str, Any]) -> dict[str, Any]:
        """Return the `validated` event to commit for a report, the `event` with a pruner's verdict
        if there is a pruner."""
        return self.method.judged(state, _within(state, event["trial"]), event)

    def next_report(self, state: State, index: int) -> int | None:
        """Return from which time a report of a trial can change anything; None if no report can."""
        trial = state.trials[_within(state, index)]
        if trial.status == "closed" or trial.stop or state.done:
            return None
        return self.method.next_report(state, index)

    def may_end(self, state: State, index: int, metric: Any) -> bool:
        """Return whether the rule that ends the search has to know of a report on the way, with
        this value of the searcher's `metric`."""
        trial = state.trials[_within(state, index)]
        if self.stop_rule is None or trial.status == "closed" or trial.stop or state.done:
            return False
        return self.stop_rule.counts(state, metric)

    def end_reason(self, state: State, trial_ids: Sequence[int]) -> str | None:
        """Return why the search has ended before its trials were used up; None if it hasn't. The
        reason names trials by `trial_ids`, in order of creation."""
        return None if self.stop_rule is None else self.stop_rule.reason(state, trial_ids)

    def _apply(self, state: State, event: Event) -> None:
        if isinstance(event, WorkRequested):
            state.assign(event.worker, event.incarnation, event.after)
        elif isinstance(event, Operations):
            self.method.operations(state, event)
        elif isinstance(event, KnownResults):
            state.known = state.known or event
        elif isinstance(event, Extended):
            self._extend(state, event)
        elif not 0 <= event.trial < state.created:
            return
        elif isinstance(event, Validated):
            self._validated(state, event)
        elif isinstance(event, Reported):
            if self._is_judged(state, event):
                self._note(state, event)
        elif isinstance(event, RunEnded):
            self._run_ended(state, event)
        elif isinstance(event, Sampled):
            state.optuna = event.optuna or state.optuna
            self.method.sampled(state, event)

    def _extend(self, state: State, event: Extended) -> None:
        """Take over the state of the search before, as that search decided, and extend it."""
        if state != self.initial():
            return
        before = Search(
            {
                "searcher": {**self.searcher, **event.searcher, "stop": self.searcher.get("stop")},
                "hyperparameters": self.space,
                "reproducibility": {"experiment_seed": self.seed},
                "max_restarts": event.max_restarts,
            }
        )
        found = before.initial()
        before.apply(found, event.events)
        found.requests = {}  # its workers are gone
        if not found.ended:
            found.done = found.abandoned = False
            self.method.extend(found)
        for name in found.__struct_fields__:
            setattr(state, name, getattr(found, name))

    def _validated(self, state: State, event: Validated) -> None:
        units = event.units
        if units is not None and self._is_judged(state, event):
            state.metric_seen = True
            self.method.validated(state, event.trial, units, event)
            self._note(state, event)

    def _note(self, state: State, event: Validated | Reported) -> None:
        if self.stop_rule is not None:
            self.stop_rule.reported(state, event.trial, event.metric)

    @staticmethod
    def _is_judged(state: State, event: Validated | Reported) -> bool:
        """Whether the report comes from the present run of a trial that was not stopped."""
        trial = state.trials[event.trial]
        if event.fencing_token not in (None, trial.fencing_token):
            return False
        return trial.status != "closed" and not trial.stop

    def _run_ended(self, state: State, event: RunEnded) -> None:
        index, trial = event.trial, state.trials[event.trial]
        if trial.worker != event.worker or event.fencing_token not in (None, trial.fencing_token):
            return
        state.release(index)
        trial.checkpoint = event.checkpoint or trial.checkpoint
        trial.lost += event.outcome == "lost"
        if trial.stop:
            state.close(index, "completed" if trial.final else "stopped")
        elif trial.settled and _is_normal(event.outcome):
            self.method.paused(state, index)
        elif self._comes_back(state, index, event.outcome):
            state.enqueue(index, RETURNED)
        else:
            self._ended(state, index, event.outcome)
        if state.trials[index].status == "closed" and not state.begins_nothing:
            self.method.closed(state, index)

    def _comes_back(self, state: State, index: int, outcome: RunOutcome) -> bool:
        trial = state.trials[index]
        if outcome == "lost":
            unsampled = self.method.lacks_sample(trial)
            return trial.lost <= max(self.max_restarts, _UNSAMPLED_LOSSES if unsampled else 0)
        # Promoted after its program had seen the end of its operations: there is more to do.
        promoted = self.method.raises_targets and trial.reached > trial.resumed_at
        return outcome not in _CLOSED_BY or (outcome == "out_of_ops" and promoted)

    def _ended(self, state: State, index: int, outcome: RunOutcome) -> None:
        state.close(index, _CLOSED_BY[outcome])
        if outcome == "invalid_hp":
            self.method.refused(state, index)
        elif outcome == "non_retryable" and not state.metric_seen and self.name != "custom":
            state.abandon()
        else:
            self.method.ended(state, index)


def _is_normal(outcome: RunOutcome) -> bool:
    """Whether the end is no fault of the trial itself."""
    return outcome == "lost" or _CLOSED_BY.get(outcome, "completed") == "completed"


def _within(state: State, index: int) -> int:
    if not 0 <= index < state.created:
        raise IndexError(f"this search has no trial with index {index}")
    return index
