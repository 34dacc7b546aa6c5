"""Checkpoints as directories that need nothing else: files, metadata and code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm.sdk.lifecycle_errors import LifecycleError

if TYPE_CHECKING:
    from detslurm.sdk.trial import Trial


def download(trial: Trial, uuid: str, target: Path) -> Path:
    """Copy a checkpoint; links in it become what they lead to."""
    from detslurm.storage import from_config

    if uuid not in [checkpoint.uuid for checkpoint in trial.checkpoints()]:
        raise LifecycleError(f"trial {trial.id} has no checkpoint {uuid}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LifecycleError(f"{target} exists already")
    directory = trial.experiment._snapshot.directory
    storage = from_config(directory.config()["checkpoint_storage"])
    if not storage.exists(uuid):
        raise LifecycleError(f"the files of checkpoint {uuid} are not under {storage.where}")
    target.mkdir(parents=True, exist_ok=True)
    storage.get(uuid, target)
    _add_code(target, directory.code)
    return target


def _add_code(target: Path, frozen: Path) -> None:
    """A PyTorchTrial's checkpoint in a bucket names the code only."""
    if (target / "load_data.json").exists() and frozen.is_dir() and not (target / "code").exists():
        shutil.copytree(frozen, target / "code", ignore=shutil.ignore_patterns("__pycache__"))
