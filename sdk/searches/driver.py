"""Drives a custom search: events of its log to the method, answers back, each once.

Before an answer is committed it is saved together with the method that gave it. A runner that was
killed in between commits the saved answer again; the search takes an answer by the number of the
event that it answers, so the second one changes nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from detslurm.config.secret_values import masked_sample
from detslurm.sdk.searches.method_storage import MethodStorage
from detslurm.sdk.searches.worker_pool import WorkerPool
from detslurm.searcher import Search, State
from detslurm.searcher.custom_method import SearcherState, SearchMethod, answer
from detslurm.searcher.operations import Operation, problem_of
from detslurm.searcher.state import Dialogue
from detslurm.store import EventLog, ExperimentDir, ExperimentFacts, StoreError, fold_trial
from detslurm.store.retry import LONG, is_transient, with_retries
from detslurm.store.trial_fold import trained_share

logger = logging.getLogger("detslurm.searcher")

_OPERATIONS_FILE = "operations.json"
# The shortest and the longest pause between two readings, in seconds.
_SHORTEST, _LONGEST = 0.25, 10.0

Answer = list[dict[str, Any]]
T = TypeVar("T")


@dataclass
class SavedMethod:
    """A method as it was saved, with the answer that it gave last."""

    state: SearcherState
    experiment_id: int
    operations: Answer


def save(method: SearchMethod, saved: SavedMethod, storage: MethodStorage) -> None:
    """Keep the method, the search's state and the answer that is about to be given."""

    def fill(folder: Path) -> None:
        method.save(saved.state, folder, experiment_id=saved.experiment_id)
        (folder / _OPERATIONS_FILE).write_text(json.dumps(saved.operations))

    storage.save(saved.state.last_event_id, fill)


def load(method: SearchMethod, storage: MethodStorage) -> SavedMethod | None:
    """The method as it was saved last; None where it never was."""
    with storage.latest() as folder:
        if folder is None:
            return None
        state, experiment_id = method.load(folder)
        operations = json.loads((folder / _OPERATIONS_FILE).read_text())
        return SavedMethod(state, experiment_id, operations)


class SearchDriver:
    """Runs one method over one experiment's log until the search is over."""

    def __init__(
        self,
        method: SearchMethod,
        saved: SavedMethod,
        experiment: ExperimentDir,
        storage: MethodStorage,
        workers: WorkerPool,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        report_progress: Callable[[float], None] = lambda share: None,
        sleep: Callable[[float], None] = time.sleep,
        waits_for_store: bool = False,
    ) -> None:
        self._method, self._saved, self._storage = method, saved, storage
        self._waits_for_store = waits_for_store
        self._experiment, self._workers = experiment, workers
        self._search = Search(experiment.config())
        self._log: EventLog[State] = EventLog(experiment.search, self._search)
        self._should_stop, self._report_progress, self._sleep = should_stop, report_progress, sleep
        self._facts = ExperimentFacts()

    def run(self) -> bool:
        """Answer events; True once the search has ended, False if this process has to stop."""
        self._check(self._with_retries(self._log.catch_up))
        if self._saved.state.last_event_id:
            self._post()
        pause = _SHORTEST
        while not self._with_retries(self._over):
            if self._should_stop():
                return False
            if self._step():
                pause = _SHORTEST
            else:
                self._sleep(pause)
                pause = min(2 * pause, _LONGEST)
        self._close()
        return True

    def _step(self) -> bool:
        """Answer all new events; whether there were any."""
        state = self._with_retries(self._log.catch_up)
        self._check(state)
        events = [e for e in _dialogue(state).events if e["id"] > self._saved.state.last_event_id]
        if events:
            self._with_retries(self._update_progress)
            self._saved.operations = self._answers(events)
            self._with_retries(lambda: save(self._method, self._saved, self._storage))
            self._post()
            self._report_progress(self._search.progress(self._log.state))
        # Tried again at once it would do nothing: it has just looked at the queue.
        self._with_retries(lambda: self._workers.replenish(self._log))
        return bool(events)

    def _answers(self, events: Iterable[dict[str, Any]]) -> Answer:
        operations: list[Operation] = []
        for event in events:
            operations += answer(self._method, self._saved.state, event)
        plain = [operation.to_dict() for operation in operations]
        if problem := problem_of(plain, _dialogue(self._log.state).trials):
            raise ValueError(f"the search method {type(self._method).__name__} asks for {problem}")
        return plain

    def _post(self) -> None:
        """Commit the saved answer, unless it was committed before, or the search is over."""
        last = self._saved.state.last_event_id
        operations = [self._without_secrets(one) for one in self._saved.operations]
        pause = _SHORTEST
        while not (state := self._log.state).done and _dialogue(state).answered < last:
            try:
                self._log.commit([{"e": "operations", "after": last, "ops": operations}])
            except StoreError as err:
                logger.warning("the answer is saved but can't be given now: %s", err)
                self._sleep(pause)
                pause = min(2 * pause, _LONGEST)

    def _without_secrets(self, operation: dict[str, Any]) -> dict[str, Any]:
        """An operation as the log keeps it; the search puts the configuration's secrets back."""
        if operation["op"] != "create":
            return operation
        return {**operation, "hparams": masked_sample(operation["hparams"], self._search.space)}

    def _update_progress(self) -> None:
        """Update the progress that running trials have reported."""
        known, state = self._saved.state.trial_progress, self._log.state
        ids = self._facts.trial_ids
        for index in state.assigned().values():
            request = state.trials[index].request_id
            if request and (trial := UUID(request)) in known and index < len(ids):
                found = fold_trial(self._experiment.trial(ids[index]))
                length = state.trials[index].target_length
                known[trial] = found.progress or trained_share(found.steps, length)

    def _over(self) -> bool:
        self._facts.fold(self._experiment.facts(after=self._facts.count))
        desired = self._facts.desired
        return desired.stopping is not None or desired.deleted or self._log.state.done

    def _close(self) -> None:
        """Record how it ended, for the method and in the store."""
        if self._log.state.done:
            self._with_retries(lambda: self._workers.end(self._log.state))
        verdict, state = self._log.state.verdict, self._saved.state
        state.experiment_failed = verdict == "error"
        state.experiment_completed = verdict == "completed"

    def _with_retries(self, act: Callable[[], T]) -> T:
        """The result of `act`, tried for minutes while the store can't be used; with
        `waits_for_store` until it comes back, because Slurm starts only jobs again."""
        while True:
            try:
                return with_retries(act, _warn, LONG)
            except OSError as error:
                if not (self._waits_for_store and is_transient(error)):
                    raise
                _warn(error)
                self._sleep(_LONGEST)

    def _check(self, state: State) -> None:
        answered, known = _dialogue(state).answered, self._saved.state.last_event_id
        if answered > known:
            raise RuntimeError(
                f"the search of experiment {self._experiment.id} was answered up to event "
                f"{answered}, but the method was saved at event {known}: this is an old copy of "
                "it, or another runner is at work"
            )


def _warn(error: Exception) -> None:
    logger.warning("the store can't be used now, trying again: %s", error)


def _dialogue(state: State) -> Dialogue:
    if state.dialogue is None:
        raise RuntimeError("a search runner needs an experiment with `searcher: {name: custom}`")
    return state.dialogue
