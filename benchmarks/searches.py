"""Searches by halving with thousands of trials behind them: ours, and Optuna's in its journal."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.crowd import RUNGS, search
from detslurm.searcher import State
from detslurm.store import EventLog
from detslurm.store.facts import FactLog
from detslurm.store.frame import frame

WORKERS = 16

_BLOCK = 100

Group = list[dict[str, Any]]


def groups(state: State, seed: int = 0) -> Iterator[Group]:
    """What the workers of a search commit one after another, while `state` follows."""
    metrics = random.Random(seed)
    refs = [f"1_{number}" for number in range(WORKERS)]
    at = dict.fromkeys(refs, 0)
    for ref in refs:
        yield [{"e": "work_requested", "worker": ref}]
    while True:
        for ref in refs:
            index = state.workers[ref]
            if state.trials[index].stop:
                at[ref] = 0
                left = {"e": "run_ended", "trial": index, "worker": ref, "outcome": "stopped"}
                yield [left, {"e": "work_requested", "worker": ref}]
                continue
            units, at[ref] = RUNGS[at[ref]], at[ref] + 1
            metric = metrics.random()
            yield [{"e": "validated", "trial": index, "time": units, "metric": metric}]


class LongSearch:
    """A log in which so many trials are over, and its workers on their way."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.folder, made = folder, search(WORKERS)
        state, facts = made.initial(), FactLog(folder)
        self._groups = groups(state)
        for number, group in enumerate(self._groups, 1):
            # Written without the commit's fsync, which is not what is measured here.
            line = frame({"v": 1, "id": f"{number:016x}", "events": group})
            Path(facts.path_text(number)).write_bytes(line)
            made.apply(state, json.loads(json.dumps(group)))
            if state.created - state.open >= trials:
                break
        self._search, self._state = made, state
        self.open().catch_up()  # leaves the cache that a search leaves

    def open(self) -> EventLog[State]:
        """The log as a process finds it."""
        log = EventLog(self.folder, self._search)
        log.catch_up()
        return log

    def decide(self, count: int) -> float:
        """Go on for `count` commits by one process that knows the log; seconds for each."""
        log, spent = self.open(), 0.0
        for group in islice(self._groups, count):
            began = time.perf_counter()
            log.commit(group)
            spent += time.perf_counter() - began
            self._search.apply(self._state, json.loads(json.dumps(group)))
        return spent / count


class OptunasSearch:
    """The same with Optuna: successive halving over its journal file."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.path = folder / "journal"
        collected = _Collected()
        study = self._study(collected)
        self._metrics = random.Random(0)
        for _ in range(min(trials, _BLOCK)):
            list(self._reports(study))
        lines = (json.dumps(log, separators=(",", ":")) for log in collected.repeated(trials))
        self.path.write_text("\n".join([*lines, ""]))

    def _study(self, backend: Any) -> Any:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend), study_name="s", load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
        )  # fmt: skip

    def _reports(self, study: Any) -> Iterator[None]:
        """One trial, report by report. The pruner's verdicts are drawn while history is made."""
        from optuna.trial import TrialState

        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        rung, loss = 0, 1.0
        for rung, at in enumerate(RUNGS):
            loss = self._metrics.random()
            trial.report(loss, at)
            study._storage.set_trial_system_attr(trial._trial_id, f"completed_rung_{rung}", loss)
            yield
            if loss > 1 / 3:
                study.tell(trial, state=TrialState.PRUNED)
                return
        study.tell(trial, loss)

    def open(self) -> Any:
        """The study as a process finds it."""
        from optuna.storages.journal import JournalFileBackend

        study = self._study(JournalFileBackend(str(self.path)))
        study.get_trials(deepcopy=False)
        return study

    def decide(self, count: int) -> float:
        """Seconds for a report with the pruner's verdict, by one process that knows the journal."""
        study, done = self.open(), 0
        began = time.perf_counter()
        while done < count:
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            for at in RUNGS:
                trial.report(self._metrics.random(), at)
                done += 1
                if trial.should_prune():
                    break
            study.tell(trial, 0.5)
        return (time.perf_counter() - began) / done


class _Collected:
    """A journal in memory, to be written to a file at once."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += json.loads(json.dumps(logs))

    def repeated(self, trials: int) -> Iterator[dict[str, Any]]:
        """The journal with so many trials; making them one by one takes their number squared."""
        head, *block = self.logs
        yield head
        for first in range(0, trials, _BLOCK):
            for log in block:
                yield log | {"trial_id": log["trial_id"] + first} if "trial_id" in log else log

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        yield from self.logs[log_number_from:]
