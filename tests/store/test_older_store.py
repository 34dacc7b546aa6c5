"""A store that an earlier version wrote reads back, and its experiments go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.sdk import Client
from detslurm.store import Store, fold_trial
from detslurm.store.records import Intent
from tests.sdk.scenes import Queue

DATA = Path(__file__).with_name("data")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A finished grid of two trials, a run that failed and was restarted, a finished search, and a
    paused trial with a checkpoint, as submitted to the local cluster before 0.1.0."""
    archive = DATA / "store-0.1.0.tar.xz"
    subprocess.run(["tar", "-xf", archive, "--no-same-owner", "-C", tmp_path], check=True)
    return tmp_path / "store"


def _shown(store: Path, *words: str) -> str:
    env = os.environ | {"DETSLURM_ROOT": str(store)}
    argv = [sys.executable, "-m", "detslurm", *words]
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


def test_it_lists_and_describes(store: Path) -> None:
    """Names, states, metrics and reasons of ends are as its writer recorded them."""
    listed = json.loads(_shown(store, "experiment", "list", "--json"))["data"]
    rows = {row["id"]: row for row in listed}
    assert {number: row["state"] for number, row in rows.items()} == {
        **dict.fromkeys((1, 2, 3), "COMPLETED"),
        4: "PAUSED",
    }
    assert rows[1]["labels"] == ["grid", "kept", "old"] and rows[1]["best_value"] == 0.75
    shown = _shown(store, "experiment", "describe", "2")
    assert "fails once" in shown and "python3 train.py" in shown
    runs = fold_trial(Store(store).experiment(2).trial(3)).runs
    assert [run.outcome for run in runs] == ["restart", "completed"]
    assert runs[0].reason == "the code exited with 3; restart 1 of 2" and runs[0].exit_code == 3
    assert runs[1].resumed_steps == 2 and runs[1].job.nodes == ("node1",)
    assert runs[0].usage is not None and runs[0].usage.memory_peak == 24821760
    assert "run 1 of trial 7 in job 5" in _shown(store, "trial", "logs", "7")


def test_a_paused_trial_goes_on(store: Path) -> None:
    """A runner reads its configuration, its claim and its checkpoint, and finishes it."""
    experiment = Store(store).experiment(4)
    experiment.append(Intent(intent="activate"))
    env = os.environ | {"DETSLURM_ROOT": str(store), "DETSLURM_LOCAL_JOB_ID": "1"}
    argv = [sys.executable, "-m", "detslurm.exec.runner", str(experiment.path), "0"]
    subprocess.run(argv, env=env, check=True)
    view = fold_trial(experiment.trial(7))
    assert [run.outcome for run in view.runs] == ["paused", "completed"]
    assert view.runs[1].resumed_steps == 3 and view.steps == 4
    assert view.hparams == {"lr": 1.0, "waits": True}
    assert view.alerts[0].description == "after 4 steps"


def test_a_search_goes_on(store: Path) -> None:
    """Keys that its configuration lacks, because they are newer, are no changes."""
    client = Client(store, warn=lambda text: None, connect=lambda name: Queue())
    done = client.experiment(3).continue_(["searcher.max_trials=8"])
    search = client.stored(done.id)._snapshot.search
    assert search is not None and len(search.state.brackets[0].rungs[0].results) == 3
    assert search.state.waiting() == [3, 4]
