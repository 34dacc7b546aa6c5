"""What a snapshot costs, and how large it is, however much was trained."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.looking import CHUNK, trained
from detslurm.look.document import MAX_POINTS
from detslurm.look.snapshot import encode, snapshot
from detslurm.sdk import Client
from detslurm.store import Store, trial_metrics
from tests.counting import calls

TRIALS = 25


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an experiment of 25 trials of 65,536 steps."""
    path = tmp_path_factory.mktemp("looking") / "store"
    with mock.patch.object(os, "fsync"):
        trained(Store.open(path), TRIALS, CHUNK)
    return path


def test_a_snapshot_of_many_steps(root: Path) -> None:
    """They are read from what was thinned when they were compacted: a call for each step that is
    drawn (7,600 a trial), not for each that was trained, and 50 kB a trial for the document."""
    experiments = [Client(root).experiment(1)]
    taken, spent = calls(lambda: snapshot(experiments))
    assert spent < TRIALS * CHUNK / 6
    assert len(encode(taken)) < TRIALS * 50_000
    (experiment,) = taken.experiments
    assert experiment.problems == []
    assert len(experiment.trials) == TRIALS
    for trial in experiment.trials:
        training = trial.curves[0]
        assert (training.metric, training.count) == ("loss", CHUNK)
        assert 800 < len(training.values) <= MAX_POINTS
        assert training.steps[-1] == CHUNK


def test_the_experiment_is_what_it_seems(root: Path) -> None:
    """Every trial of it has all its steps for other readers, too."""
    rows = trial_metrics(Store.open(root).experiment(1).trial(17), "training")
    assert len(rows) == CHUNK
    assert rows[-1].steps == CHUNK
