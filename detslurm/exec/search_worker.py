"""The trial queue of a search's worker: it takes trials from the search's log."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from detslurm._base.states import ERROR, TERMINAL
from detslurm.config.run_config import RunConfig
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Cause, Decision
from detslurm.exec.sampling import SamplerLost, SamplingError, sample
from detslurm.exec.text_log import print_message, retried
from detslurm.exec.trial_queue import QueuedTrial, SearchVerdict
from detslurm.exec.worker_pool import WorkerPool
from detslurm.searcher import Search, State
from detslurm.slurm import Cluster, JobInfo
from detslurm.store import EventLog, TrialView, fold_trial
from detslurm.store.search_records import add_trials, end_search, with_checkpoints

# How long a worker waits for the answer of a method that runs elsewhere, and how often it polls.
_TIMEOUT, _POLL_SECONDS = 30.0, 0.5
# How long a worker without a trial waits for a queue that does not answer, how long a standby with
# one, and how often they ask: this may be the only worker.
_IDLE_PATIENCE, _PATIENCE, _PAUSE = 600.0, 60.0, 10.0


class SearchTrialQueue:
    """Takes the first trial in the queue, whichever worker had it before.

    The runner, which calls this, tries failed calls of the store again.
    """

    def __init__(self, intents: Intents, config: RunConfig, *, ref: str, cluster: Cluster) -> None:
        self._intents, self._ref = intents, ref
        self._search = Search(config.plain)
        self._log: EventLog[State] = EventLog(intents.experiment.search, self._search)
        self._pool = WorkerPool(intents, ref=ref, cluster=cluster)
        self._incarnation = secrets.token_hex(4)
        self._took = self._concluded = False

    @property
    def _state(self) -> State:
        return self._log.state

    @retried
    def has_work(self) -> bool:
        self._log.catch_up()
        if not self._has_trial() and self._search.name == "custom":
            self._wait_for_answer()
        found = self._has_trial() or (not self._state.done and self._take_over())
        if self._state.done:  # also by the report of a dead worker: no worker may come after this
            self._concluded |= self._conclude()
        return found

    @property
    def concluded(self) -> bool:
        return self._concluded

    def _has_trial(self) -> bool:
        state = self._state
        return not state.done and (
            state.assignment(self._ref) is not None or state.next_in_queue() is not None
        )

    def _wait_for_answer(self) -> None:
        """A method of the user's own answers after a while, or it has no runner."""
        deadline = time.monotonic() + _TIMEOUT
        while not self._has_trial() and not self._state.done and time.monotonic() < deadline:
            self._intents.refresh()
            if self._intents.cause is not None:
                return
            time.sleep(_POLL_SECONDS)  # another node's file: there is nothing to wait on
            self._log.catch_up()

    def _take_over(self) -> bool:
        """Free the trials of workers that are gone; whether any waits now."""
        if not any(worker != self._ref for worker in self._state.workers):
            return False
        seen = self._wait_for_query()
        events = self._pool.gone(self._state, seen) if seen is not None else []
        if events:
            self._log.commit(self._with_checkpoints(events))
        if self._has_trial():
            return True
        if seen is not None and not self._state.done and not self._pool.is_last(seen):
            self._keep_standby(seen)  # the others may still be killed after this one has left
        return False

    def _wait_for_query(self) -> dict[str, JobInfo] | None:
        """The workers in the queue; while the queue does not answer, this may be the only worker.

        None after minutes, or when a worker that waits without a trial has something else to do.
        """
        idle = self._own_trial is None
        until = time.monotonic() + (_IDLE_PATIENCE if idle else _PATIENCE)
        while (seen := self._pool.query(self._state)) is None:
            self._log.catch_up()
            over = self._state.done or self._intents.cause is not None
            if over or (idle and self._has_trial()):
                break
            if not self._pool.may_answer or time.monotonic() >= until:
                break
            time.sleep(_PAUSE)
        return seen

    def _keep_standby(self, seen: Mapping[str, JobInfo]) -> None:
        if self._may_submit and self._search.name != "custom":
            self._pool.keep_standby(seen)

    @property
    def _may_submit(self) -> bool:
        return bool(self._intents.facts.created.submit_from_jobs)

    @retried
    def take(self) -> QueuedTrial | None:
        index = self._ask() if self._own_trial is None else self._own_trial
        while index is not None and (outcome := self._over(index) or self._refusal(index)):
            index = self._ask(*self._with_checkpoints([self._run_end(index, outcome)]))
        if index is None:
            return None
        if self._pool.is_standby and not self._took:
            self._tend(self._wait_for_query())  # this is the only worker
        elif self._took and self._pool.due(self._state):
            self._tend(self._pool.query(self._state))
        self._took = True
        return self._task(index)

    def _over(self, index: int) -> str | None:
        """The outcome of a trial whose last worker died before it could report it."""
        trial = self._state.trials[index]
        if trial.stop:
            return "stopped"
        if trial.settled:
            return "out_of_ops"
        view = fold_trial(self._intents.experiment.trial(self._trial_id(index)))
        last = next((run.outcome for run in view.runs if run.outcome in TERMINAL), None)
        if last is not None:
            return last
        killed = self._intents.cause_for(view.id) is Cause.KILL and self._intents.cause is None
        return "canceled" if killed else None

    def _refusal(self, index: int) -> str | None:
        """Let the trial have hyperparameters; its outcome where none can be chosen."""
        if index not in self._search.unsampled(self._state):
            return None
        try:
            sample(self._log, self._search, index)
        except SamplingError as err:
            print_message(f"trial {self._trial_id(index)} has no sample: {err}")
            return "error"
        except SamplerLost as err:  # another node may have more luck: the trial is not to blame
            raise SystemExit(f"detslurm: {err}: its trial is left to other workers") from None
        return None

    def _tend(self, seen: Mapping[str, JobInfo] | None) -> None:
        """See to the others: free trials of lost workers, and let more come where trials wait."""
        if seen is None:
            return
        events = self._pool.gone(self._state, seen)
        if events:
            self._log.commit(self._with_checkpoints(events))
        self._pool.avoid_bad_nodes(self._state, seen)
        missing = self._pool.missing(self._state, seen)
        if missing and self._may_submit:
            self._pool.submit(missing)
        self._keep_standby(seen)

    def _task(self, index: int) -> QueuedTrial:
        plan = self._search.plan(self._state, index)
        token = self._state.trials[index].fencing_token
        source = self._source(index)
        steps = self._steps(index, source) if source is not None else 0
        return QueuedTrial(index, self._trial_id(index), plan, source, steps, token)

    def _source(self, index: int) -> str | None:
        """The checkpoint that the method lets the trial start from."""
        trial = self._state.trials[index]
        if trial.source_checkpoint is not None or trial.source is None:
            return trial.source_checkpoint
        return self._state.trials[trial.source].checkpoint

    def _steps(self, index: int, checkpoint: str) -> int:
        """How far a copy has come with its original; a trial that starts warm counts from 0."""
        trial = self._state.trials[index]
        if trial.source is None or not trial.reached:
            return 0
        from detslurm.store import read_continued  # only here: others start without it

        original = self._intents.experiment.trial(self._trial_id(trial.source))
        begun = read_continued(original)  # in a search that goes on
        if begun is not None and begun.uuid == checkpoint:
            return begun.steps
        return next((c.steps for c in fold_trial(original).checkpoints if c.uuid == checkpoint), 0)

    def _trial_id(self, index: int) -> int:
        intents = self._intents
        while index >= len(intents.facts.trial_ids):
            add_trials(intents.experiment, intents.facts)
            intents.refresh()
        return intents.facts.trial_id(index)

    @retried
    def retake(self, task: QueuedTrial) -> QueuedTrial | None:
        # Processes of the run before may have outlived its agent: their reports must not count.
        self._incarnation = secrets.token_hex(4)
        if self._ask() != task.index:
            return None
        return structs.replace(task, fencing_token=self._state.trials[task.index].fencing_token)

    def verdict(self, task: QueuedTrial, view: TrialView) -> SearchVerdict:
        self._log.catch_up()
        trial = self._state.trials[task.index]
        rest = not trial.final and (trial.settled or view.out_of_ops)
        return SearchVerdict(stop=trial.stop, rest=rest)

    def on_run_ending(self, task: QueuedTrial, decision: Decision) -> None:
        pass

    @retried
    def release(
        self, task: QueuedTrial, decision: Decision, view: TrialView, *, going_on: bool
    ) -> None:
        if decision.outcome in ("canceled", "killed") and self._intents.cause is not None:
            return  # everything ends: the search is not concerned
        given_up = decision.outcome == ERROR and view.non_retryable
        outcome = "non_retryable" if given_up else decision.outcome
        latest = view.latest_checkpoint
        event = self._run_end(
            task.index, outcome, latest.uuid if latest else None, token=task.fencing_token
        )
        if going_on:
            self._ask(event)
        else:
            self._log.commit([event])

    @property
    def _own_trial(self) -> int | None:
        """The trial that this process asked for, and not a former process of this worker."""
        index = self._state.assignment(self._ref)
        mine = index is not None and self._state.trials[index].incarnation == self._incarnation
        return index if mine else None

    def _ask(self, *before: dict[str, Any]) -> int | None:
        """Ask for a trial, after these events; it, or None where none waits.

        A former process of this worker may still be alive, or what it asked for come late: the
        trial that it got is asked for again.
        """
        events = before
        while True:
            request = self._state.request_event(self._ref, self._incarnation)
            self._log.commit([*events, request])
            has_trial = self._state.assignment(self._ref) is not None and not self._state.done
            if self._own_trial is not None or not has_trial:
                return self._own_trial
            events = ()

    def _with_checkpoints(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return with_checkpoints(self._intents.experiment, self._intents.facts.trial_ids, events)

    def _run_end(
        self, index: int, outcome: str, checkpoint: str | None = None, *, token: int | None = None
    ) -> dict[str, Any]:
        token = self._state.trials[index].fencing_token if token is None else token
        event = {
            "e": "run_ended",
            "trial": index,
            "worker": self._ref,
            "outcome": outcome,
            "fencing_token": token,
        }
        return event if checkpoint is None else {**event, "checkpoint": checkpoint}

    def is_experiment_over(self) -> bool:
        return self._state.done and self._conclude()

    def _conclude(self) -> bool:
        """Record that the search is over; False where that is done already."""
        self._intents.refresh()
        if self._intents.facts.closed is not None:
            return False
        state = self._state
        outcomes = [trial.outcome for trial in state.trials]
        reason = self._search.end_reason(state, self._intents.facts.trial_ids)
        first = end_search(self._intents.experiment, outcomes, state.verdict, reason)
        self._pool.dismiss()
        return first

    def remaining_trials(self) -> range:
        return range(1)
