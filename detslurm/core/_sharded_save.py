"""One sharded checkpoint that has begun: how far it is, and what each rank still owes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.core._retries import keep_trying
from detslurm.storage import Digests, Resources, Storage
from detslurm.storage.files import sync


class UploadPlan(NamedTuple):
    """The chief's decision: each rank's share of the checkpoint's resources."""

    storage_id: str
    metadata: dict[str, Any]
    shares: list[Resources] | None
    """None for files that are written to where they stay."""


class ShardedSave:
    """A checkpoint that all ranks have begun to save, each its part.

    A rank may `store_ahead()` whole files, in any thread. When all have written to `path`,
    they call `divide()`, and `seal()` with their `store()`.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: Storage,
        plan: UploadPlan,
        path: Path | None,
        *,
        divided: Callable[[UploadPlan, Path], UploadPlan],
        commit: Callable[[UploadPlan, Resources, Digests], None],
    ) -> None:
        self._dist, self._storage, self._plan, self._path = dist, storage, plan, path
        self._divided, self._commit = divided, commit
        self._ahead: dict[str, tuple[int, int]] = {}
        self._digests: dict[str, str] = {}  # of files that all ranks stored ahead
        self.storage_id = plan.storage_id

    @property
    def path(self) -> Path:
        """The directory to write to, the same for all ranks of a node."""
        assert self._path is not None
        return self._path

    def store_ahead(self, whole: Path) -> None:
        """Make a file in `path` safe, or all in a directory, so that `store()` has less to do."""
        if whole.is_symlink():
            return
        files = keep_trying(lambda: _files(whole))
        if self._is_final:
            for file in files:
                keep_trying(partial(sync, file, guard=True))
            return
        versions = {str(file.relative_to(self.path)): _version(file) for file in files}
        self._ahead.update(versions)
        self._storage.put(self.storage_id, self.path, versions)

    def divide(self) -> None:
        """Decide which rank stores what. A collective of all ranks."""
        if not self._is_final:
            self._plan = self._divided(self._plan, self.path)
            own = (self._ahead, self._storage.digests(self.storage_id))
            for ahead, digests in self._dist.allgather(own):
                self._ahead.update(ahead)
                self._digests.update(digests)

    @property
    def _is_final(self) -> bool:
        return self._storage.staging(self.storage_id) is not None

    def store(self) -> Resources:
        """Make this rank's share safe, and return it; asks nothing of other ranks."""
        if self._plan.shares is None:
            # Each node brings its own writes to the disk, and lists what it certainly sees.
            return self._storage.flush(self.storage_id) if self._dist.local_rank == 0 else {}
        own = self._plan.shares[self._dist.rank]
        if self._path is None:
            return own
        new = dict.fromkeys(name for name in own if self._is_new(name))
        stored = {name: size for name, size in own.items() if name not in new}
        return stored | self._storage.put(self.storage_id, self._path, new)

    def _is_new(self, name: str) -> bool:
        return name not in self._ahead or self._ahead[name] != _version(self.path / name)

    def seal(self, store: Callable[[], Resources]) -> None:
        """Make it a checkpoint, of what each rank's `store` returns. A collective of all ranks."""

        def store_own() -> tuple[Resources, Digests]:
            return store(), self._storage.digests(self.storage_id)

        def commit(parts: list[tuple[Resources, Digests]]) -> None:
            digests = dict(self._digests)
            for _, own in parts:
                digests.update(own)
            self._commit(self._plan, _union([stored for stored, _ in parts]), digests)

        run_collectively(self._dist, store_own, commit)


def _files(whole: Path) -> list[Path]:
    """A file, or all files in a directory."""
    return [whole] if whole.is_file() else [f for f in whole.rglob("*") if f.is_file()]


def _version(file: Path) -> tuple[int, int]:
    """Values that differ once the file was changed."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _union(parts: list[Resources]) -> Resources:
    """All resources; of a file that nodes see differently, the size of who saw most of it."""
    union: Resources = {}
    for part in parts:
        for name, size in part.items():
            union[name] = max(size, union.get(name, 0))
    return union
