"""What a snapshot costs, and how large it is, however much was trained."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.looking import CHUNK, trained
from detslurm.look.document import MAX_POINTS
from detslurm.look.snapshot import encode, snapshot
from detslurm.sdk import Client
from detslurm.store import Store, trial_metrics


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with an experiment of 100 trials of 65,536 steps."""
    path = tmp_path_factory.mktemp("looking") / "store"
    with mock.patch.object(os, "fsync"):
        trained(Store.open(path), 100, CHUNK)
    return path


def test_a_hundred_trials(root: Path) -> None:
    """They are read from what was thinned when they were compacted: 3 seconds are enough for a
    million steps each, and 5 MB for the document."""
    began = time.process_time()
    taken = snapshot([Client(root).experiment(1)])
    data = encode(taken)
    assert time.process_time() - began < 3
    assert len(data) < 5_000_000
    (experiment,) = taken.experiments
    assert experiment.problems == []
    assert len(experiment.trials) == 100
    for trial in experiment.trials:
        training = trial.curves[0]
        assert (training.metric, training.count) == ("loss", CHUNK)
        assert 800 < len(training.values) <= MAX_POINTS
        assert training.steps[-1] == CHUNK


def test_the_experiment_is_what_it_seems(root: Path) -> None:
    """Every trial of it has all its steps for other readers, too."""
    rows = trial_metrics(Store.open(root).experiment(1).trial(57), "training")
    assert len(rows) == CHUNK
    assert rows[-1].steps == CHUNK
