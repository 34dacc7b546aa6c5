"""Save, restore and delete checkpoints of the trial."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.display import Displayed
from detslurm._base.node_files import own_name
from detslurm.core._checkpoint_records import CheckpointRecords, Outputs, plain_metadata
from detslurm.core._distributed import DistributedContext
from detslurm.core._download import Download, refuse_unknown
from detslurm.core._retries import discard_unsealed, keep_trying
from detslurm.core._sharded_save import ShardedSave
from detslurm.core._sharded_upload import ShardedSaver, chosen_files
from detslurm.core._tensorboard import AutoTensorboard
from detslurm.storage import METADATA, Resources, Selector, Storage

if TYPE_CHECKING:
    from detslurm.core._output_files import OutputFiles

__all__ = ["CheckpointContext", "DownloadMode"]

logger = logging.getLogger("detslurm.core")


class DownloadMode(enum.Enum):
    """How the processes of a node share a download.

    Attributes:
        LocalWorkersShareDownload: All processes of a node call together; one of them copies the
            files and the others wait for it.
        NoSharedDownload: Each process copies for itself, and no process waits for another.
    """

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext(Displayed):
    """Save, restore and delete checkpoints of this trial: `core.checkpoint`.

    A checkpoint exists from the moment when its record is committed, after all its files are on
    disk. Files that a crash leaves before that moment are never taken for a checkpoint; the next
    run removes them.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: Storage,
        records: CheckpointRecords,
        auto_tensorboard: AutoTensorboard | None = None,
    ) -> None:
        self._dist = dist
        self._storage = storage
        self._records = records
        self._sharded = ShardedSaver(dist, storage, records)
        self._tensorboard = auto_tensorboard

    def _facts(self) -> dict[str, Any]:
        return {"rank": self._dist.rank, "storage": self._records.storage_type}

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: dict[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the contents of a directory as a checkpoint.

        Calls that make no sense are refused before anything is copied.

        Args:
            ckpt_dir: The directory to store. With `shard` it may be None on ranks that have no
                files.
            metadata: Anything that JSON can express; none by default. Inside a job it needs an
                integer `steps_completed`. With `shard` the ranks' mappings are merged.
            shard: Whether all ranks call together, each with its part of the checkpoint. By default
                only the chief may call.
            selector: Gets each path relative to `ckpt_dir` (directories end in "/") and returns
                whether to store it; by default everything is stored.

        Returns:
            The storage id of the checkpoint, a UUID.

        Raises:
            RuntimeError: If a worker calls without `shard`, if there is nothing to upload, or if
                ranks contradict each other (different files of one name, different metadata of one
                key). Also once another run has taken over the trial.
            TypeError: If `metadata` is not a mapping.
            ValueError: If `steps_completed` is needed and is not an integer.
        """
        source = None if ckpt_dir is None else Path(ckpt_dir)
        if shard:
            storage_id = self._sharded.upload(source, metadata, selector)
        else:
            self._chief_only("upload")
            storage_id = self._upload_alone(source, metadata, selector)
        self._saved()
        return storage_id

    def _upload_alone(
        self, source: Path | None, metadata: dict[str, Any] | None, selector: Selector | None
    ) -> str:
        if source is None:
            raise RuntimeError(_nothing_to_upload(selector))
        data = self._records.checked(plain_metadata(metadata))
        chosen = keep_trying(lambda: chosen_files(source, selector))
        with self._saving() as storage_id:
            resources = self._storage.put(storage_id, source, chosen)
            self._records.refuse_superseded()
            keeps_metadata = selector is None or selector(METADATA)
            added = self._storage.seal(storage_id, data if keeps_metadata else None)
        digests = self._storage.digests(storage_id)
        self._records.commit(storage_id, data, {**resources, **added}, digests)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: dict[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Yield a directory to save to, and the storage id of the checkpoint that it becomes when
        the block ends. Arguments and errors as in `upload`.

        When the block raises, nothing is recorded and the directory is removed. The directory is
        there for the block alone: on a shared file system it has another name afterwards, elsewhere
        it is temporary. Keep the storage id, and read with `restore_path`.

        Args:
            shard: Whether all ranks enter together. The ranks of a node then share one directory;
                on a shared file system all ranks do. By default only the chief may enter.

        Example:
            import json

            import detslurm as det

            with det.core.init() as core:
                with core.checkpoint.store_path({"steps_completed": 100}) as (path, storage_id):
                    (path / "state.json").write_text(json.dumps({"weight": 0.5}))
                with core.checkpoint.restore_path(storage_id) as path:
                    assert json.loads((path / "state.json").read_text()) == {"weight": 0.5}
        """
        if shard:
            with self._sharded.store_path(metadata) as result:
                yield result
        else:
            self._chief_only("store_path")
            with self._store_path_alone(metadata) as result:
                yield result
        self._saved()

    @contextlib.contextmanager
    def _store_path_alone(
        self, metadata: dict[str, Any] | None, outputs: Outputs | None = None
    ) -> Iterator[tuple[Path, str]]:
        data = self._records.checked(plain_metadata(metadata))
        with self._saving() as storage_id:
            staging = self._storage.staging(storage_id)
            with _directory(staging) as path:
                yield path, storage_id
                resources = self._flushed(storage_id, path)
            self._records.refuse_superseded()
            added = self._storage.seal(storage_id, data)
        digests = self._storage.digests(storage_id)
        self._records.commit(storage_id, data, {**resources, **added}, digests, outputs)

    @contextlib.contextmanager
    def _committing(self, metadata: dict[str, Any], outputs: Outputs) -> Iterator[Path]:
        """As `store_path` on the chief; the checkpoint's record commits files of outputs, too."""
        with self._store_path_alone(metadata, outputs) as (path, _):
            yield path
        self._saved()

    def _begin_outputs(self) -> str:
        """Choose a directory of outputs: until a checkpoint commits files of it, it is garbage."""
        return self._records.begin()

    def _output_files(self, uuid: str) -> OutputFiles:
        """This rank's files in a directory of outputs."""
        from detslurm.core._output_files import OutputFiles  # only here: most code has none

        return OutputFiles(self._storage, uuid, f"rank_{self._dist.rank}")

    @contextlib.contextmanager
    def _begun(self, metadata: dict[str, Any]) -> Iterator[ShardedSave]:
        """Begin a checkpoint of all ranks, which the body writes and seals in steps of its own."""
        with self._sharded.begun(metadata) as save:
            self._records.begin_in_background(save.storage_id)
            yield save
        self._saved()

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path | None]:
        """A directory beside the checkpoints for as long as the body runs; None in a cloud.

        For the chief. It counts as a checkpoint that was never completed: what a crash leaves of it
        is removed by the trial's next run.
        """
        storage_id = self._records.begin()
        staging = self._storage.staging(storage_id)
        try:
            if staging is not None:
                self._storage.begin(storage_id)
            yield staging
        finally:
            if staging is not None:
                with contextlib.suppress(OSError):  # nor must what can't be removed end the run
                    self._storage.discard(storage_id)

    def _is_final(self, storage_id: str) -> bool:
        """Whether `store_path` gives the stored directory, not a directory to upload from."""
        return self._storage.staging(storage_id) is not None

    def _flushed(self, storage_id: str, path: Path) -> Resources:
        if self._storage.staging(storage_id) is not None:
            return self._storage.flush(storage_id)
        return self._storage.put(storage_id, path, chosen_files(path, None))

    @contextlib.contextmanager
    def _saving(self) -> Iterator[str]:
        """Remove the written files if the body raises before the checkpoint is sealed."""
        storage_id = self._records.begin()
        try:
            self._storage.begin(storage_id)
            yield storage_id
        except BaseException:
            discard_unsealed(self._storage, storage_id)
            raise

    def _saved(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.checkpoint_saved()

    def _chief_only(self, method: str) -> None:
        if self._dist.rank != 0:
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
        """Copy the files of a checkpoint into a directory.

        Args:
            storage_id: The checkpoint's id.
            ckpt_dir: Where to copy the files; the directory is created if it does not exist.
            download_mode: By default all ranks of a node call with the same directory, and one of
                them copies what any of them selects; with `NoSharedDownload` each rank copies for
                itself.
            selector: Gets each path relative to the checkpoint (directories end in "/") and returns
                whether to copy it; by default everything is copied.

        Raises:
            CheckpointNotFound: If the checkpoint does not exist or is not complete.
            InvalidCheckpointException: If a file in a bucket is not the file that was saved.
        """
        Download(self._dist, self._storage, self._records.digests).copy(
            storage_id, Path(ckpt_dir), selector, shared=_shared(download_mode)
        )

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """Yield a directory with the files of a checkpoint to read from.

        On a shared file system that is the stored directory itself, not a copy: do not write to it.
        Elsewhere it is a temporary directory, which is removed when the block ends. Arguments and
        errors as in `download`.

        Args:
            download_mode: By default the ranks of a node share one temporary directory and must all
                enter; with `NoSharedDownload` each rank has its own.
            selector: By default everything is there. It has no effect on a shared file system.
        """
        download = Download(self._dist, self._storage, self._records.digests)
        with download.opened(storage_id, selector, shared=_shared(download_mode)) as path:
            yield path

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """Return the metadata that the checkpoint `storage_id` was stored with; {} without any.

        `client.get_checkpoint(storage_id).metadata` has later changes by
        `Checkpoint.add_metadata()`, `remove_metadata()` or the command line, too. Raises
        `CheckpointNotFound` if the checkpoint does not exist or is not complete.
        """
        refuse_unknown(self._storage, storage_id)
        try:
            return self._storage.metadata(storage_id)
        except FileNotFoundError:
            return {}

    def delete(self, storage_id: str) -> None:
        """Delete the checkpoint `storage_id` with all its files. Any rank may call.

        A checkpoint that something needs, such as a model version, stays, with a warning in the
        log. So does a checkpoint of another experiment, such as the first one of a warm start:
        `detslurm checkpoint delete` deletes it.

        Raises:
            CheckpointNotFound: If the checkpoint does not exist or is not complete.
            RuntimeError: If another run has taken over the trial.
        """
        refuse_unknown(self._storage, storage_id)
        self._records.refuse_superseded()  # the other run may go on from it
        # Recorded first: no run may resume from a checkpoint that is half gone.
        if needed_by := self._records.deleted(storage_id):
            logger.warning("checkpoint %s is not deleted: %s needs it", storage_id, needed_by)
        else:
            # Once more: a run that has claimed it before that record finds nothing wrong with it.
            self._records.refuse_superseded()
            self._storage.discard(storage_id)


@contextlib.contextmanager
def _directory(staging: Path | None) -> Iterator[Path]:
    if staging is not None:
        yield staging
        return
    with tempfile.TemporaryDirectory(prefix=own_name("")) as name:
        yield Path(name)


def _shared(mode: DownloadMode) -> bool:
    return DownloadMode(mode) is DownloadMode.LocalWorkersShareDownload


def _nothing_to_upload(selector: Selector | None) -> str:
    if selector is not None:
        return "ckpt_dir has to be provided if selector is not None"
    return (
        "cannot call .upload(ckpt_dir=None, shard=False), "
        "which would result in doing nothing at all"
    )
