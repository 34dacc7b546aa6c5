"""A process inside a detslurm job, without the job: its store, its environment, its flag."""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from detslurm._base import info
from detslurm._base.flag import PreemptFlag
from detslurm.config.run_config import RunConfig
from detslurm.exec.environment import run_environment
from detslurm.store import ExperimentDir, Store, TrialDir
from detslurm.store.records import Created


@dataclass
class Job:
    """Run 1 of trial 1 of an experiment, on two nodes called one and two."""

    experiment: ExperimentDir
    trial: TrialDir
    flag: PreemptFlag
    checkpoints: Path


def enter(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: Mapping[str, Any] | None = None,
    *,
    search: bool = False,
) -> Job:
    """Make this process one of the run's; with `search` its trial is the first of a search."""
    checkpoints = root / "checkpoints"
    full = {
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 10}},
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(checkpoints)},
        **(config or {}),
    }
    created = Created(name="x", trials=1, metric="loss", search=search)
    experiment = Store.open(root).create_experiment(created, full)
    trial_id = experiment.created().first_trial
    trial = experiment.trial(trial_id)
    start = trial.open_run(
        {
            "trial": trial_id,
            "experiment": experiment.id,
            "index": 0,
            "job": {"cluster": "local", "ref": "1", "nodes": ["one", "two"]},
            "time": 0.0,
            "hparams": {},
            "seed": 1,
            "resume": None,
            **({"fencing_token": 1} if search else {}),
        }
    )
    flag = PreemptFlag.create()
    environment = run_environment(
        base={},
        config=RunConfig.of(full),
        start=start,
        experiment_dir=experiment.path,
        node="one",
        slot_ids=[0],
        gpus=[],
        peers={
            "container_addrs": ["one"],
            "container_rank": 0,
            "container_slot_counts": [1],
        },
        flag=flag.name,
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(info, "_info", None)
    return Job(experiment, trial, flag, checkpoints)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """This process as the chief of a run."""
    made = enter(tmp_path / "root", monkeypatch)
    yield made
    made.flag.close()


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """What a context does at signals ends with its test: the next one has another flag."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    faulthandler.unregister(signal.SIGUSR1)
