"""Checkpoints as their storage has them: which are still there, and copies of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec

from detslurm.sdk.errors import LifecycleError
from detslurm.storage import SharedFS, from_config
from detslurm.store import CheckpointView, ExperimentDir, StoreError


def marked(storage: SharedFS | None, checkpoints: Iterable[CheckpointView]) -> list[CheckpointView]:
    """The checkpoints, DELETED if their files are no longer on the disk."""
    found = list(checkpoints)
    if storage is None:
        return found
    return [
        msgspec.structs.replace(c, state="DELETED") if not storage.exists(c.uuid) else c
        for c in found
    ]


def disk_of(experiment: ExperimentDir) -> SharedFS | None:
    """Their storage, if it is visible here: an empty directory may be an unmounted one."""
    try:
        section = experiment.config()["checkpoint_storage"]
        if section["type"] not in ("shared_fs", "directory"):
            return None
        storage = from_config(section)
        assert isinstance(storage, SharedFS)
        own = storage.base.is_relative_to(experiment.store.path) and storage.base.is_dir()
        if own:
            return storage
        with os.scandir(storage.base) as entries:  # others may have tens of thousands there
            return storage if next(entries, None) is not None else None
    except (StoreError, OSError, KeyError, ValueError):
        return None


def download(experiment: ExperimentDir, uuid: str, target: Path) -> Path:
    """Copy a checkpoint; links in it become what they lead to."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LifecycleError(f"{target} exists already")
    storage = from_config(experiment.config()["checkpoint_storage"])
    if not storage.exists(uuid):
        raise LifecycleError(f"the files of checkpoint {uuid} are not under {storage.where}")
    target.mkdir(parents=True, exist_ok=True)
    storage.get(uuid, target)
    _add_code(target, experiment.code)
    return target


def _add_code(target: Path, frozen: Path) -> None:
    """A PyTorchTrial's checkpoint in a bucket names the code only."""
    if (target / "load_data.json").exists() and frozen.is_dir() and not (target / "code").exists():
        shutil.copytree(frozen, target / "code", ignore=shutil.ignore_patterns("__pycache__"))
