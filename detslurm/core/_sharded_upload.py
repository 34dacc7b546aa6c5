"""One checkpoint saved by many ranks: agree, write, and let the chief commit once."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from detslurm.core._checkpoint_records import CheckpointRecords, plain_metadata
from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.core._node_directory import made_for_node
from detslurm.core._retries import discard_unsealed, keep_trying
from detslurm.core._shard_plan import (
    Proposal,
    contested,
    merged_metadata,
    settled,
    shares,
)
from detslurm.core._sharded_save import ShardedSave, UploadPlan
from detslurm.storage import METADATA, Digests, Resources, Selector, Storage, list_resources
from detslurm.storage.files import is_directory
from detslurm.storage.names import selected


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
        plan = self._planned(directory, undecided)
        with self._discarding(plan.storage_id):
            save = self._save(plan, directory)
            save.seal(save.store)
        return plan.storage_id

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
        resources = keep_trying(lambda: chosen_files(directory, selector))
        status = keep_trying(directory.stat)
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

    def _save(self, plan: UploadPlan, path: Path | None) -> ShardedSave:
        return ShardedSave(
            self._dist, self._storage, plan, path, divided=self._divided, commit=self._commit
        )

    def _commit(self, plan: UploadPlan, resources: Resources, digests: Digests) -> None:
        self._records.refuse_superseded()
        added = self._storage.seal(plan.storage_id, plan.metadata)
        digests = {**digests, **self._storage.digests(plan.storage_id)}
        self._records.commit(plan.storage_id, plan.metadata, {**resources, **added}, digests)

    @contextlib.contextmanager
    def _discarding(self, storage_id: str) -> Iterator[None]:
        """Remove the written files if the body raises before the checkpoint is sealed."""
        try:
            yield
        except BaseException:
            if self._dist.rank == 0:
                discard_unsealed(self._storage, storage_id)
            raise

    @contextlib.contextmanager
    def store_path(self, metadata: Mapping[str, Any] | None) -> Iterator[tuple[Path, str]]:
        """Give all ranks of a node one directory; together they are the checkpoint."""
        with self.begun(metadata) as save:
            with self._together():
                yield save.path, save.storage_id
            save.divide()
            save.seal(save.store)

    @contextlib.contextmanager
    def begun(self, metadata: Mapping[str, Any] | None) -> Iterator[ShardedSave]:
        """Begin a checkpoint that the body writes and seals; it is removed when the body raises.

        Only entering is a collective: a body that is given up leaves without the other ranks.
        """

        def begin(by_rank: list[dict[str, Any]]) -> UploadPlan:
            data = self._records.checked(merged_metadata(by_rank))
            return UploadPlan(self._begin(), data, None)

        plan = run_collectively(self._dist, lambda: plain_metadata(metadata), begin)
        staging = self._storage.staging(plan.storage_id)
        with self._discarding(plan.storage_id):
            if staging is not None:
                yield self._save(plan, staging)
                return
            path = made_for_node(self._dist)
            try:
                yield self._save(plan, path)
            finally:
                if self._dist.local_rank == 0:
                    shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """End when all ranks have left the body; raises everywhere when any of them raised."""
        try:
            yield
        except BaseException as error:
            failure = RuntimeError(f"saving failed: {type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # the first error must be seen
                run_collectively(self._dist, _raiser(failure), lambda _: None)
            raise
        run_collectively(self._dist, lambda: None, lambda _: None)

    def _divided(self, plan: UploadPlan, path: Path) -> UploadPlan:
        """The plan with the shares of what the nodes have written."""

        def ask(proposals: list[Proposal]) -> UndecidedPlan:
            parts = shares(proposals)
            return UndecidedPlan(parts, contested(parts), plan.metadata)

        undecided = run_collectively(self._dist, lambda: self._proposal(path, None, None), ask)
        parts = run_collectively(
            self._dist,
            lambda: _digests(path, undecided.contested, self._dist.rank),
            lambda digests: settled(undecided.shares, undecided.contested, digests),
        )
        return plan._replace(shares=parts)


def chosen_files(directory: Path, selector: Selector | None) -> Resources:
    """The files of a directory that go into a checkpoint; our `metadata.json` replaces its own.

    Raises `ValueError` for a path that is not a directory.
    """
    if not is_directory(directory):
        raise ValueError(f"ckpt_dir {str(directory)!r} is not a directory")
    resources = selected(list_resources(directory, follow=True), selector)
    resources.pop(METADATA, None)
    return resources


def _digests(
    directory: Path | None, contested_files: Mapping[str, list[int]], rank: int
) -> dict[str, str]:
    mine = [name for name, ranks in contested_files.items() if rank in ranks]
    if directory is None:
        return {}
    return {name: keep_trying(partial(_digest, directory / name)) for name in mine}


def _digest(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"a link to {path.readlink()}"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _raiser(error: Exception) -> Any:
    def raise_it() -> None:
        raise error

    return raise_it
