"""Download a checkpoint to this node, once for all ranks that ask together."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from detslurm import errors
from detslurm._base.node_files import own_name
from detslurm._base.trust import mark_unverified
from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.core._node_directory import shared_directory
from detslurm.core._retries import keep_trying
from detslurm.storage import Digests, Selector, Storage
from detslurm.storage.names import recorded, selected

logger = logging.getLogger("detslurm.core")


class Download:
    """Copies of checkpoints; `digests` gives those of a checkpoint's files, None without any.

    A copy from a bucket that can't be compared is marked: nothing in it is unpickled unasked.
    """

    def __init__(
        self,
        dist: DistributedContext,
        storage: Storage,
        digests: Callable[[str], Digests | None],
    ) -> None:
        self._dist, self._storage, self._digests = dist, storage, digests

    def copy(
        self, storage_id: str, target: Path, selector: Selector | None, *, shared: bool
    ) -> None:
        """Copy a checkpoint into a directory.

        Raises `CheckpointNotFound` and `InvalidCheckpointException`.
        """
        if shared:
            self._copy_together(storage_id, target, selector)
            return
        refuse_unknown(self._storage, storage_id)
        self._get(storage_id, target, selector, self._expected(storage_id))

    def _expected(self, storage_id: str) -> Digests | None:
        is_file_system = self._storage.direct(storage_id) is not None
        return None if is_file_system else self._digests(storage_id)

    def _get(
        self, storage_id: str, target: Path, selector: Selector | None, expected: Digests | None
    ) -> None:
        keep_trying(lambda: target.mkdir(parents=True, exist_ok=True))
        if expected is None and self._storage.direct(storage_id) is None:
            keep_trying(lambda: mark_unverified(target))
        self._storage.get(storage_id, target, selector, expected)

    def _copy_together(self, storage_id: str, target: Path, selector: Selector | None) -> None:
        expected: Digests | None = None

        def list_resources() -> list[str] | None:
            nonlocal expected
            if self._dist.local_rank != 0:
                return None
            refuse_unknown(self._storage, storage_id)
            expected = self._expected(storage_id)
            return list(recorded(self._storage.resources(storage_id), expected))

        names = run_collectively(self._dist, list_resources, lambda found: found[0], local=True)

        def choose() -> set[str]:
            return set(selected(dict.fromkeys(names or [], 0), selector))

        def get(choices: list[set[str]]) -> None:
            wanted = set[str]().union(*choices)
            self._get(storage_id, target, wanted.__contains__, expected)

        run_collectively(self._dist, choose, get, local=True)

    @contextlib.contextmanager
    def opened(self, storage_id: str, selector: Selector | None, *, shared: bool) -> Iterator[Path]:
        """Give a directory with a checkpoint. Raises as `copy`."""
        direct = self._storage.direct(storage_id)
        if direct is not None:
            refuse_unknown(self._storage, storage_id)
            if selector is not None:
                logger.warning("restore_path() gives the whole stored directory: selector ignored")
            yield direct
            return
        with _target(self._dist, shared) as path:
            self.copy(storage_id, path, selector, shared=shared)
            yield path


@contextlib.contextmanager
def _target(dist: DistributedContext, shared: bool) -> Iterator[Path]:
    if shared:
        with shared_directory(dist) as path:
            yield path
        return
    with tempfile.TemporaryDirectory(prefix=own_name("")) as name:
        yield Path(name)


def refuse_unknown(storage: Storage, storage_id: str) -> None:
    """Raise `CheckpointNotFound` unless the storage has the whole checkpoint."""
    if not storage.exists(storage_id):
        raise errors.CheckpointNotFound(
            f"there is no checkpoint {storage_id} under {storage.where}"
        )
