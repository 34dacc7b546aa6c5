"""What has become of checkpoints that nobody has deleted through detslurm."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from detslurm.storage import SharedFS, from_config
from detslurm.store import CheckpointView, ExperimentDir, StoreError


def marked(
    experiment: ExperimentDir, checkpoints: Iterable[CheckpointView]
) -> list[CheckpointView]:
    """The checkpoints; DELETED where the disk that had their files does not have them now."""
    found = list(checkpoints)
    storage = _disk_of(experiment) if found else None
    if storage is None:
        return found
    return [
        msgspec.structs.replace(c, state="DELETED") if not storage.exists(c.uuid) else c
        for c in found
    ]


def _disk_of(experiment: ExperimentDir) -> SharedFS | None:
    """Where they lie, if that is seen here: an empty directory may lack what is mounted on it."""
    try:
        section = experiment.config()["checkpoint_storage"]
        if section["type"] not in ("shared_fs", "directory"):
            return None
        storage = from_config(section)
        assert isinstance(storage, SharedFS)
        own = storage.base.is_relative_to(experiment.store.path) and storage.base.is_dir()
        return storage if own or any(storage.base.iterdir()) else None
    except (StoreError, OSError, KeyError, ValueError):
        return None
