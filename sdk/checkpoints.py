"""What has become of checkpoints that nobody has deleted through detslurm."""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from detslurm.storage import SharedFS, from_config
from detslurm.store import CheckpointView, ExperimentDir, StoreError


def marked(storage: SharedFS | None, checkpoints: Iterable[CheckpointView]) -> list[CheckpointView]:
    """The checkpoints; DELETED where the disk that had their files does not have them now."""
    found = list(checkpoints)
    if storage is None:
        return found
    return [
        msgspec.structs.replace(c, state="DELETED") if not storage.exists(c.uuid) else c
        for c in found
    ]


def disk_of(experiment: ExperimentDir) -> SharedFS | None:
    """Where they lie, if that is seen here: an empty directory may lack what is mounted on it."""
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
