"""One sharded checkpoint that has begun: how far it is, and what each rank still owes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.storage import Resources, Storage


class UploadPlan(NamedTuple):
    """What the chief decided: each rank's share of the checkpoint's resources."""

    storage_id: str
    metadata: dict[str, Any]
    shares: list[Resources] | None
    """None for files that are written to where they stay."""


class ShardedSave:
    """A checkpoint that all ranks have begun to save, each its part.

    When all have written to `path`, all call `divide()`, then each `store()`, in any thread, and
    all `seal()`.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: Storage,
        plan: UploadPlan,
        path: Path | None,
        *,
        divided: Callable[[UploadPlan, Path], UploadPlan],
        commit: Callable[[UploadPlan, Resources], None],
    ) -> None:
        self._dist, self._storage, self._plan, self._path = dist, storage, plan, path
        self._divided, self._commit = divided, commit
        self.storage_id = plan.storage_id

    @property
    def path(self) -> Path:
        """The directory to write to; one for all ranks of a node."""
        assert self._path is not None
        return self._path

    def divide(self) -> None:
        """Decide which rank stores what. A collective of all ranks."""
        if self._storage.staging(self.storage_id) is None:
            self._plan = self._divided(self._plan, self.path)

    def store(self) -> Resources:
        """Make safe what is this rank's to store, and return it; asks nothing of other ranks."""
        if self._plan.shares is None:
            # Each node brings its own writes to the disk, and lists what it certainly sees.
            return self._storage.flush(self.storage_id) if self._dist.local_rank == 0 else {}
        own = self._plan.shares[self._dist.rank]
        if self._path is not None:
            self._storage.put(self.storage_id, self._path, own)
        return own

    def seal(self, store: Callable[[], Resources]) -> None:
        """Make it a checkpoint, of what each rank's `store` returns. A collective of all ranks."""
        run_collectively(self._dist, store, lambda stored: self._commit(self._plan, _union(stored)))


def _union(parts: list[Resources]) -> Resources:
    """All resources; of a file that nodes see differently, the size of who saw most of it."""
    union: Resources = {}
    for part in parts:
        for name, size in part.items():
            union[name] = max(size, union.get(name, 0))
    return union
