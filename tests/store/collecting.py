"""Experiments with checkpoints on disk, and how their garbage is collected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detslurm.storage import SharedFS, Storages
from detslurm.store import ExperimentDir, RunLog
from detslurm.store.gc import Collector, Removed
from tests.sdk.scenes import Scene

Saved = tuple[str, int, float | None]
"""A checkpoint's id, its steps, and the loss of the validation at these steps."""


def policy(best: int = 0, trial_best: int = 1, latest: int = 1) -> dict[str, Any]:
    """What `checkpoint_storage` says."""
    return {
        "save_experiment_best": best,
        "save_trial_best": trial_best,
        "save_trial_latest": latest,
    }


def experiment(scene: Scene, trials: int = 1, **numbers: int) -> ExperimentDir:
    """One whose policy has these numbers."""
    made = scene.experiment(trials)
    scene.set_policy(made, policy(**numbers))
    return made


def run(
    scene: Scene,
    made: ExperimentDir,
    index: int,
    saved: Sequence[Saved],
    end: str | None = "completed",
    resume: str | None = None,
) -> int:
    """A run that saved these, with their files; without `end` it goes on."""
    trial = made.trial(made.created().first_trial + index)
    claim = None if resume is None else {"uuid": resume, "steps": 0}
    number: int = trial.open_run({"hparams": {}, "time": 1.0, "resume": claim}).run
    with RunLog.open(trial.records_path(number)) as log:
        for uuid, steps, loss in saved:
            log.append({"t": "checkpoint_started", "uuid": uuid})
            scene.checkpoint(uuid)
            log.append({"t": "checkpoint", "uuid": uuid, "steps": steps,
                        "resources": {"weights": 5}, "metadata": {}})  # fmt: skip
            if loss is not None:
                log.append({"t": "metrics", "group": "validation", "steps": steps,
                            "metrics": {"loss": loss}, "time": float(steps)})  # fmt: skip
    if end is not None:
        assert trial.write_end(number, {"outcome": end, "time": 2.0})
    return number


def storage(scene: Scene) -> SharedFS:
    """Where the checkpoints of a scene are."""
    return SharedFS(scene.checkpoints)


def files(scene: Scene) -> Storages:
    """How the files of a scene's checkpoints are removed."""
    return Storages({"type": "shared_fs", "host_path": str(scene.checkpoints)}, scene.root)


def collect(scene: Scene, made: ExperimentDir, trial: int | None = None) -> Removed:
    """One collection by a process that has read nothing before."""
    return Collector(made, files(scene)).collect(trial)


def on_disk(scene: Scene) -> set[str]:
    """What lies in the storage, whole or not."""
    return {path.name for path in scene.checkpoints.iterdir()}
