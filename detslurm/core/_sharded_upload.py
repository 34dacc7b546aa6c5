"""One checkpoint saved by many ranks: agree, write, and let the chief commit once."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from detslurm.core._checkpoint_records import CheckpointRecords, plain_metadata
from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.core._shard_plan import (
    Proposal,
    contested,
    merged_metadata,
    settled,
    shares,
)
from detslurm.storage import METADATA, Resources, Selector, Storage, list_resources
from detslurm.storage.names import selected


class UploadPlan(NamedTuple):
    """What the chief decided: each rank's share of the checkpoint's resources."""

    storage_id: str
    metadata: dict[str, Any]
    shares: list[Resources]


class UndecidedPlan(NamedTuple):
    """Shares before the contents of the files that several ranks have were compared."""

    shares: list[Resources]
    contested: dict[str, list[int]]
    metadata: dict[str, Any]


class ShardedSaver:
    """Saves of all ranks together; every method is a collective of all ranks."""

    def __init__(
        self, dist: DistributedContext, storage: Storage, records: CheckpointRecords
    ) -> None:
        self._dist = dist
        self._storage = storage
        self._records = records

    def upload(
        self,
        directory: Path | None,
        metadata: Mapping[str, Any] | None,
        selector: Selector | None,
    ) -> str:
        """Store the union of the ranks' directories."""

        def ask(proposals: list[Proposal]) -> UndecidedPlan:
            parts = shares(proposals)
            data = self._records.checked(merged_metadata([p.metadata for p in proposals]))
            return UndecidedPlan(parts, contested(parts), data)

        undecided = run_collectively(
            self._dist, lambda: self._proposal(directory, metadata, selector), ask
        )
        return self._store(self._planned(directory, undecided), directory)

    def _proposal(
        self,
        directory: Path | None,
        metadata: Mapping[str, Any] | None,
        selector: Selector | None,
    ) -> Proposal:
        data = plain_metadata(metadata)
        if directory is None:
            if selector is not None:
                raise RuntimeError("ckpt_dir has to be provided if selector is not None")
            return Proposal({}, None, False, data)
        resources, status = chosen_files(directory, selector), directory.stat()
        # Device and inode name a directory on one node only: local disks repeat them on others.
        directory_id = (self._dist.cross_rank, status.st_dev, status.st_ino)
        return Proposal(resources, directory_id, selector is not None, data)

    def _planned(self, directory: Path | None, undecided: UndecidedPlan) -> UploadPlan:
        def plan(digests: list[dict[str, str]]) -> UploadPlan:
            parts = settled(undecided.shares, undecided.contested, digests)
            return UploadPlan(self._begin(), undecided.metadata, parts)

        return run_collectively(
            self._dist, lambda: _digests(directory, undecided.contested, self._dist.rank), plan
        )

    def _begin(self) -> str:
        storage_id = self._records.begin()
        self._storage.begin(storage_id)
        return storage_id

    def _store(self, plan: UploadPlan, directory: Path | None) -> str:
        def put() -> None:
            if directory is not None:
                self._storage.put(plan.storage_id, directory, plan.shares[self._dist.rank])

        def commit(_: list[None]) -> None:
            self._commit(plan.storage_id, plan.metadata, _union(plan.shares))

        with self._discarding(plan.storage_id):
            run_collectively(self._dist, put, commit)
        return plan.storage_id

    def _commit(self, storage_id: str, metadata: dict[str, Any], resources: Resources) -> None:
        self._records.refuse_superseded()
        added = self._storage.seal(storage_id, metadata)
        self._records.commit(storage_id, metadata, {**resources, **added})

    @contextlib.contextmanager
    def _discarding(self, storage_id: str) -> Iterator[None]:
        """Remove what was written when the body raises.

        What is sealed stays: a record that can't be committed now may still be written later, and
        must not name what is gone.
        """
        try:
            yield
        except BaseException:
            if self._dist.rank == 0:
                with contextlib.suppress(Exception):  # the first error is the one to see
                    if not self._storage.exists(storage_id):
                        self._storage.discard(storage_id)
            raise

    @contextlib.contextmanager
    def store_path(self, metadata: Mapping[str, Any] | None) -> Iterator[tuple[Path, str]]:
        """Give all ranks of a node one directory; together they are the checkpoint."""

        def begin(by_rank: list[dict[str, Any]]) -> UploadPlan:
            data = self._records.checked(merged_metadata(by_rank))
            return UploadPlan(self._begin(), data, [])

        plan = run_collectively(self._dist, lambda: plain_metadata(metadata), begin)
        staging = self._storage.staging(plan.storage_id)
        with self._discarding(plan.storage_id):
            if staging is not None:
                with self._together():
                    yield staging, plan.storage_id
                self._seal_staging(plan)
                return
            with shared_directory(self._dist) as path:
                with self._together():
                    yield path, plan.storage_id
                self._store_nodes(plan, path)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """End when all ranks have left the body; raises everywhere when one of them raised."""
        try:
            yield
        except BaseException as error:
            failure = RuntimeError(f"saving failed: {type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # the first error is the one to see
                run_collectively(self._dist, _raiser(failure), lambda _: None)
            raise
        run_collectively(self._dist, lambda: None, lambda _: None)

    def _seal_staging(self, plan: UploadPlan) -> None:
        def flush() -> Resources:
            # Each node brings its own writes to the disk, and lists what it certainly sees.
            return self._storage.flush(plan.storage_id) if self._dist.local_rank == 0 else {}

        run_collectively(
            self._dist,
            flush,
            lambda seen: self._commit(plan.storage_id, plan.metadata, _union(seen)),
        )

    def _store_nodes(self, plan: UploadPlan, path: Path) -> None:
        def ask(proposals: list[Proposal]) -> UndecidedPlan:
            parts = shares(proposals)
            return UndecidedPlan(parts, contested(parts), plan.metadata)

        undecided = run_collectively(self._dist, lambda: self._proposal(path, None, None), ask)
        parts = run_collectively(
            self._dist,
            lambda: _digests(path, undecided.contested, self._dist.rank),
            lambda digests: settled(undecided.shares, undecided.contested, digests),
        )
        self._store(plan._replace(shares=parts), path)


def chosen_files(directory: Path, selector: Selector | None) -> Resources:
    """What of a directory goes into a checkpoint; its `metadata.json` gives way to ours.

    Raises `ValueError` for a path that is not a directory.
    """
    if not directory.is_dir():
        raise ValueError(f"ckpt_dir {str(directory)!r} is not a directory")
    resources = selected(list_resources(directory, follow=True), selector)
    resources.pop(METADATA, None)
    return resources


@contextlib.contextmanager
def shared_directory(dist: DistributedContext) -> Iterator[Path]:
    """A temporary directory that the ranks of a node share; removed when all have left it."""
    path = run_collectively(
        dist,
        lambda: Path(tempfile.mkdtemp(prefix="detslurm-")) if dist.local_rank == 0 else None,
        lambda paths: paths[0],
        local=True,
    )
    assert path is not None
    try:
        yield path
    finally:
        with contextlib.suppress(Exception):  # others may be gone already
            dist.gather_local(None)
        if dist.local_rank == 0:
            shutil.rmtree(path, ignore_errors=True)


def _digests(
    directory: Path | None, contested_files: Mapping[str, list[int]], rank: int
) -> dict[str, str]:
    mine = [name for name, ranks in contested_files.items() if rank in ranks]
    return {name: _digest(directory / name) for name in mine} if directory is not None else {}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _union(parts: list[Resources]) -> Resources:
    """All resources; of a file that nodes see differently, the size of who saw most of it."""
    union: Resources = {}
    for part in parts:
        for name, size in part.items():
            union[name] = max(size, union.get(name, 0))
    return union


def _raiser(error: Exception) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it
