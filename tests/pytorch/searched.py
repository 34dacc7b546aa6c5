"""A whole search in this process: the real store, search and runner's decisions, without jobs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm.config.run_config import RunConfig
from detslurm.exec.execution import Execution
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Action, AttemptResult, Decision
from detslurm.exec.run_claim import JobContext
from detslurm.exec.search_worker import SearchTrialQueue
from detslurm.exec.trial_queue import QueuedTrial
from detslurm.searcher import Search, State
from detslurm.store import (
    EventLog,
    ExperimentView,
    Store,
    TrialView,
    fold_experiment,
    fold_facts,
    fold_trial,
)
from detslurm.store.records import Created
from tests.pytorch.managed import inside

ALLOCATION: Any = SimpleNamespace(
    slot_ids=(), nodes=("one",), record=lambda: {"cluster": "local", "ref": "1", "nodes": ["one"]}
)


class Searched:
    """An experiment with a search; `run()` is its one worker."""

    def __init__(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        searcher: Mapping[str, Any],
        space: Mapping[str, Any],
        **more: Any,
    ) -> None:
        self._patch = monkeypatch
        self.config: dict[str, Any] = {
            "searcher": {"metric": "loss", "smaller_is_better": True, **searcher},
            "hyperparameters": dict(space),
            "reproducibility": {"experiment_seed": 1},
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(root / "checkpoints")},
            "max_restarts": 3,
            **more,
        }
        metric = self.config["searcher"]["metric"]
        created = Created(name="x", metric=metric, trials=4, search=True)
        self.experiment = Store.open(root).create_experiment(created, self.config)
        self.runs: list[tuple[int, str]] = []
        """Which trial ran, by index, and how the run ended."""

    def run(self, code: Callable[[], object]) -> State:
        """Take trials as long as there are any; `code` is what a job would run."""
        intents = Intents(self.experiment)
        intents.refresh()
        cluster: Any = SimpleNamespace(
            name="local", query=lambda refs: {}, cancel=lambda *a, **k: None
        )
        config = RunConfig.of(self.config)
        trial_queue = SearchTrialQueue(intents, config, ref="1", cluster=cluster)
        while trial_queue.has_work() and (task := trial_queue.take()) is not None:
            self._train(task, trial_queue, intents, code)
        return self.state

    def _train(
        self,
        task: QueuedTrial | None,
        trial_queue: SearchTrialQueue,
        intents: Intents,
        code: Callable[[], object],
    ) -> None:
        while task is not None:
            decision = self._once(task, trial_queue, intents, code)
            self.runs.append((task.index, decision.outcome))
            if decision.action is Action.STOP:
                view = fold_trial(self.experiment.trial(task.trial_id))
                trial_queue.release(task, decision, view, going_on=False)
                return
            task = trial_queue.retake(task)

    def _once(
        self,
        task: QueuedTrial,
        trial_queue: SearchTrialQueue,
        intents: Intents,
        code: Callable[[], object],
    ) -> Decision:
        nothing: Any = None
        inbox: Any = SimpleNamespace(wait=lambda seconds: False)
        job = JobContext(
            intents, RunConfig.of(self.config), ALLOCATION, nothing, inbox, lambda: None, nothing
        )
        execution = Execution(task, trial_queue, job)
        before = execution.view()
        start = execution._start(before)
        with inside(self.experiment, self.config, start, self._patch):
            status = _status(code)
        decision, _ = execution._decide(before, AttemptResult(exit_code=status))
        end = {"type": "end", "run": start.run, "outcome": decision.outcome}
        self.experiment.trial(task.trial_id).write_end(
            start.run, {**end, "reason": decision.reason, "time": 0.0}
        )
        return decision

    @property
    def state(self) -> State:
        log = EventLog(self.experiment.search, Search(self.config))
        return log.catch_up()

    def view(self) -> ExperimentView:
        return fold_experiment(self.experiment)

    def trial(self, index: int) -> TrialView:
        facts = fold_facts(self.experiment)
        number = facts.trial_ids[index]
        return fold_trial(self.experiment.trial(number), facts.context(number))


def _status(code: Callable[[], object]) -> int:
    try:
        code()
    except SystemExit as left:
        return int(left.code or 0)
    except Exception:
        traceback.print_exc()
        return 1
    return 0
