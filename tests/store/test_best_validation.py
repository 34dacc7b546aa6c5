"""Logs that grow are read once, whatever is asked of them and however often."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from detslurm.store import (
    ExperimentDir,
    RunLog,
    Store,
    StoreFault,
    TrialDir,
    fold_experiment,
    fold_trial,
    fs,
)
from detslurm.store.best_validation import BestValidation
from detslurm.store.reading import ReadCache
from tests.store import scenes
from tests.store.scenes import metrics


class Bytes:
    """How many bytes the store has read."""

    def __init__(self) -> None:
        self.count = 0
        self._read = os.read

    def read(self, handle: int, count: int) -> bytes:
        data = self._read(handle, count)
        self.count += len(data)
        return data

    def of(self, best: BestValidation) -> int:
        """How many it takes to answer."""
        before = self.count
        best.value()
        return self.count - before


@pytest.fixture
def read() -> Iterator[Bytes]:
    counter = Bytes()
    with mock.patch.object(os, "read", counter.read):
        yield counter


def report(trial: TrialDir, run: int, steps: int, loss: float) -> None:
    """A hundred reports of training, then one of validation."""
    with RunLog.open(trial.records_path(run)) as log:
        for _ in range(100):
            log.append(metrics(steps, loss=1.0))
        log.append(metrics(steps, "validation", loss=loss))


def test_only_what_is_new_is_read(store: Store, read: Bytes) -> None:
    """However long the logs of all trials have become."""
    experiment = scenes.experiment(store, 10)
    trials = [experiment.trial(n) for n in range(1, 11)]
    for trial in trials:
        scenes.run(trial, [])
    best = BestValidation(experiment)
    for steps in range(1, 20):
        for trial in trials:
            report(trial, 1, steps, 1 / steps)
        size = sum(trial.records_path(1).stat().st_size for trial in trials)
        new = read.of(best)
        assert new <= size / steps + 10_000
        assert best.value() == 1 / steps
        assert read.of(best) <= 1000, "nothing was reported meanwhile"
    logs = [log for reader in best._trials.values() for log in reader._logs.values()]
    assert {len(log.training) for log in logs} == {1}, "steps fill no memory"
    trials[0].write_end(1, {"outcome": "completed"})
    best.value()
    trials[0].records_path(1).unlink()
    assert best.value() == 1 / 19, "what is over is known"


def test_a_watched_trial_is_read_once(store: Store, read: Bytes) -> None:
    """Who looks again and again, as `wait` does, reads what was reported since."""
    trial = scenes.trial(store)
    scenes.run(trial, [])
    cache: ReadCache = {}
    for steps in range(1, 10):
        report(trial, 1, steps, 1.0)
        before = read.count
        assert fold_trial(trial, cache=cache).steps == steps
        assert read.count - before <= trial.records_path(1).stat().st_size / steps + 2000


def test_what_was_not_whole_yet_is_read_again(store: Store) -> None:
    """A file server may show zeros where what was written last has come first."""
    experiment = scenes.experiment(store, 1)
    trial = experiment.trial(1)
    scenes.run(trial, [])
    for steps, loss in ((1, 0.5), (2, 0.25), (3, 0.75)):
        report(trial, 1, steps, loss)
    name = trial.records_path(1)
    whole = name.read_bytes()
    hole = whole.index(b"0.25")
    name.write_bytes(whole[: hole - 200] + bytes(400) + whole[hole + 200 :])
    best, cache = BestValidation(experiment), ReadCache()
    assert best.value() == 0.5 and fold_trial(trial, cache=cache).problems
    name.write_bytes(whole)
    assert best.value() == 0.25
    assert fold_trial(trial, cache=cache) == fold_trial(trial)
    assert fold_trial(trial, cache=cache).problems == ()


def test_news_before_a_read_that_fails_are_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pieces of a log were taken: the next look finds them, though nothing is new."""
    experiment = scenes.experiment(store, 1)
    trial = experiment.trial(1)
    scenes.run(trial, [])
    best = BestValidation(experiment)
    assert best.value() is None
    report(trial, 1, 1, 0.5)
    whole = fs.read_pieces

    def failing(path: fs.AnyPath, *, start: int = 0) -> Iterator[bytes]:
        yield from whole(path, start=start)
        raise StoreFault("broken", errno.EIO, str(path))

    monkeypatch.setattr(fs, "read_pieces", failing)
    with pytest.raises(StoreFault):
        best.value()
    monkeypatch.undo()
    assert best.value() == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_the_fold_says(store: Store, place: Path, seed: int) -> None:
    """At any moment of trials that resume, are fenced, go back and write their end record."""
    draw = random.Random(seed)
    experiment = scenes.experiment(store, 3, smaller_is_better=bool(seed % 2))
    best = BestValidation(experiment)
    memories: dict[int, ReadCache] = {1: {}, 2: {}, 3: {}}
    for _ in range(60):
        something(draw, experiment)
        if draw.random() < 0.7:
            assert best.value() == fold_experiment(experiment).best_value
        if draw.random() < 0.7:
            for number, cache in memories.items():
                trial = experiment.trial(number)
                assert fold_trial(trial, cache=cache) == fold_trial(trial)


def something(draw: random.Random, experiment: ExperimentDir) -> None:
    """One thing that a trial may do; a zombie is a run that writes after the next one began."""
    trial = experiment.trial(draw.randint(1, 3))
    runs = trial.runs()
    if runs and runs[-1].outcome == "completed":
        return
    if not runs or draw.random() < 0.15:
        resume = {"uuid": "c", "steps": draw.randint(0, 5)} if runs else None
        trial.open_run({"time": 1.0, "resume": resume})
    elif draw.random() < 0.1:
        trial.write_end(len(runs), {"outcome": draw.choice(["preempted", "completed"])})
    else:
        with RunLog.open(trial.records_path(draw.randint(1, len(runs)))) as log:
            group = draw.choice(["validation", "training", "test"])
            log.append(metrics(draw.randint(1, 9), group, loss=draw.random()))
