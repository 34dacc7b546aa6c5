"""Save, restore and delete checkpoints of the trial."""

from __future__ import annotations

import contextlib
import enum
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from detslurm import errors
from detslurm.core._distributed import DistributedContext
from detslurm.core._metrics import plain
from detslurm.core._recorder import AnyRecorder
from detslurm.storage import SharedFS, copy_selected
from detslurm.storage.shared_fs import METADATA, Selector


class DownloadMode(enum.Enum):
    """How the processes of a node share a download."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Checkpoints of this trial in its checkpoint storage.

    A checkpoint exists from the moment when its record is committed, after all its files are on
    disk; what a crash leaves before that is never taken for one and is removed by the next run.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: SharedFS,
        recorder: AnyRecorder,
        *,
        needs_steps: bool,
    ) -> None:
        self._dist = dist
        self._storage = storage
        self._recorder = recorder
        self._needs_steps = needs_steps

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the contents of a directory as a checkpoint; returns its storage id.

        `selector` takes paths relative to `ckpt_dir` (directories end in `/`). `metadata` needs an
        integer `steps_completed`. Before anything is copied it raises `RuntimeError` for calls that
        make no sense (off the chief without `shard`, nothing to upload), `ValueError` for metadata.
        """
        self._chief_unless_sharded("upload", shard)
        if ckpt_dir is None:
            raise RuntimeError(_nothing_to_upload(shard, selector))
        source = Path(ckpt_dir)
        if not source.is_dir():
            raise ValueError(f"ckpt_dir {str(ckpt_dir)!r} is not a directory")
        with self._saving(metadata, selector=selector) as (path, storage_id):
            copy_selected(source, path, selector)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Give a directory to save to, which is a checkpoint once the block ends.

        Yields the directory and the storage id. When the block raises, nothing is recorded and the
        directory is removed. Errors as in `upload`.
        """
        self._chief_unless_sharded("store_path", shard)
        with self._saving(metadata) as result:
            yield result

    @contextlib.contextmanager
    def _saving(
        self, metadata: Mapping[str, Any] | None, selector: Selector | None = None
    ) -> Iterator[tuple[Path, str]]:
        data = self._checked_metadata(metadata)
        storage_id = str(uuid.uuid4())
        # Said beforehand, so that the next run knows what to remove if this one is killed here.
        self._recorder.commit({"t": "checkpoint_started", "uuid": storage_id})
        path = self._storage.begin(storage_id)
        try:
            yield path, storage_id
            keep = selector is None or selector(METADATA)
            resources = self._storage.seal(storage_id, data if keep else None)
            self._recorder.commit(
                {
                    "t": "checkpoint",
                    "uuid": storage_id,
                    "steps": data.get("steps_completed"),
                    "resources": resources,
                    "metadata": data,
                    "time": time.time(),
                }
            )
        except BaseException:
            with contextlib.suppress(OSError):
                self._storage.discard(storage_id)
            raise

    def _checked_metadata(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"metadata must be a dict, not {type(metadata).__name__}")
        data = plain(metadata or {})
        steps = data.get("steps_completed")
        if self._needs_steps and (isinstance(steps, bool) or not isinstance(steps, int)):
            raise ValueError(
                "checkpoint metadata needs a 'steps_completed' key with an integer, "
                f"but metadata is {dict(metadata or {})!r}"
            )
        return data

    def _chief_unless_sharded(self, method: str, shard: bool) -> None:
        if not shard and self._dist.rank != 0:
            raise RuntimeError(
                f"cannot call .{method}(shard=False) from non-chief worker (rank={self._dist.rank})"
            )

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files into a directory, which is created if it doesn't exist.

        Raises `detslurm.errors.CheckpointNotFound`.
        """
        target = Path(ckpt_dir)
        target.mkdir(parents=True, exist_ok=True)
        copy_selected(self._existing(storage_id), target, selector)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Give the directory of a checkpoint to read from: the stored one itself, not a copy.

        Raises `detslurm.errors.CheckpointNotFound`. A `selector` has no effect on shared_fs.
        """
        yield self._existing(storage_id)

    def _existing(self, storage_id: str) -> Path:
        if not self._storage.exists(storage_id):
            raise errors.CheckpointNotFound(
                f"there is no checkpoint {storage_id} under {self._storage.base}"
            )
        return self._storage.path(storage_id)

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata of a checkpoint ({} if it has none). Raises `CheckpointNotFound`."""
        self._existing(storage_id)
        try:
            return self._storage.metadata(storage_id)
        except FileNotFoundError:
            return {}

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint and its files. Raises `CheckpointNotFound`."""
        self._existing(storage_id)
        # Recorded first: nobody may resume from a checkpoint that is half gone.
        self._recorder.commit({"t": "checkpoint_deleted", "uuid": storage_id})
        self._storage.discard(storage_id)


def _nothing_to_upload(shard: bool, selector: Callable[[str], bool] | None) -> str:
    if selector is not None:
        return "ckpt_dir has to be provided if selector is not None"
    if shard:
        return (
            "cannot call .upload(ckpt_dir=None, shard=True) from all ranks; "
            "at least one rank must have a valid ckpt_dir"
        )
    return (
        "cannot call .upload(ckpt_dir=None, shard=False), "
        "which would result in doing nothing at all"
    )
