"""A trial in a job, without the job: runs one after the other, each in this process."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from detslurm._base import info
from detslurm._base.flag import PreemptFlag
from detslurm.config.run_config import RunConfig
from detslurm.exec.environment import run_environment
from detslurm.store import ExperimentDir, MetricRow, Store, TrialView, fold_trial, trial_metrics
from detslurm.store.records import Created
from detslurm.store.run_records import StartRecord


class Managed:
    """One trial of an experiment; `run()` makes this process its next run."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, config: Mapping[str, Any] | None = None
    ) -> None:
        self._patch = monkeypatch
        self.config = {
            "searcher": {
                "name": "single",
                "metric": "loss",
                "smaller_is_better": True,
                "max_length": {"batches": 20},
            },
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(root / "checkpoints")},
            **(config or {}),
        }
        created = Created(name="x", trials=1, metric="loss")
        self.experiment = Store.open(root).create_experiment(created, self.config)
        self.trial = self.experiment.trial(self.experiment.created().first_trial)

    @contextlib.contextmanager
    def run(
        self,
        hparams: Mapping[str, Any] | None = None,
        seed: int = 11,
        source: str | None = None,
    ) -> Iterator[PreemptFlag]:
        """This process as the chief of the next run, from the latest checkpoint; from `source` it
        starts warm."""
        latest = self.view().latest_checkpoint
        resume = {"uuid": latest.uuid, "steps": latest.steps} if latest else None
        if source is not None:
            resume = {"uuid": source, "steps": 0}
        start = self.trial.open_run(
            {
                "trial": self.trial.id,
                "experiment": self.experiment.id,
                "job": {"cluster": "local", "ref": "1", "nodes": ["one"]},
                "time": 0.0,
                "hparams": dict(hparams or {}),
                "seed": seed,
                "resume": resume,
            }
        )
        with inside(self.experiment, self.config, start, self._patch) as flag:
            yield flag

    def view(self) -> TrialView:
        return fold_trial(self.trial)

    def metrics(self, group: str) -> list[MetricRow]:
        return trial_metrics(self.trial, group)

    def steps(self, group: str) -> list[int]:
        """The batches at which metrics were reported."""
        return [row.steps for row in self.metrics(group)]

    def checkpoints(self) -> list[int]:
        """The batches of the checkpoints, in the order in which they were saved."""
        return [checkpoint.steps or 0 for checkpoint in self.view().checkpoints]


@contextlib.contextmanager
def inside(
    experiment: ExperimentDir,
    config: Mapping[str, Any],
    start: StartRecord,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PreemptFlag]:
    """This process as the chief of a run that has been claimed."""
    flag = PreemptFlag.create()
    environment = run_environment(
        base={},
        config=RunConfig.of(config),
        start=start,
        experiment_dir=experiment.path,
        node="one",
        slot_ids=[0],
        gpus=[],
        peers={"container_addrs": ["one"], "container_rank": 0, "container_slot_counts": [1]},
        flag=flag.name,
    )
    handler = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.delenv("DET_LATEST_CHECKPOINT", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(info, "_info", None)
        try:
            yield flag
        finally:
            signal.signal(signal.SIGTERM, handler)
            faulthandler.unregister(signal.SIGUSR1)
            flag.close()
