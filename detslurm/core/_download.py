"""Download a checkpoint to this node, once for all ranks that ask together."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detslurm import errors
from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.core._node_directory import shared_directory
from detslurm.core._retries import keep_trying
from detslurm.storage import Selector, Storage
from detslurm.storage.names import selected

logger = logging.getLogger("detslurm.core")


def download_checkpoint(
    dist: DistributedContext,
    storage: Storage,
    storage_id: str,
    target: Path,
    selector: Selector | None,
    shared: bool,
) -> None:
    """Copy a checkpoint into a directory. Raises `CheckpointNotFound`."""
    if shared:
        _download_together(dist, storage, storage_id, target, selector)
        return
    refuse_unknown(storage, storage_id)
    _make(target)
    storage.get(storage_id, target, selector)


def _download_together(
    dist: DistributedContext,
    storage: Storage,
    storage_id: str,
    target: Path,
    selector: Selector | None,
) -> None:
    is_local_chief = dist.local_rank == 0

    def list_resources() -> list[str] | None:
        if not is_local_chief:
            return None
        refuse_unknown(storage, storage_id)
        return list(storage.resources(storage_id))

    names = run_collectively(dist, list_resources, lambda found: found[0], local=True) or []

    def choose() -> set[str]:
        return set(selected(dict.fromkeys(names, 0), selector))

    def get(choices: list[set[str]]) -> None:
        wanted = set[str]().union(*choices)
        _make(target)
        storage.get(storage_id, target, wanted.__contains__)

    run_collectively(dist, choose, get, local=True)


def _make(target: Path) -> None:
    keep_trying(lambda: target.mkdir(parents=True, exist_ok=True))


@contextlib.contextmanager
def downloaded_checkpoint(
    dist: DistributedContext,
    storage: Storage,
    storage_id: str,
    selector: Selector | None,
    shared: bool,
) -> Iterator[Path]:
    """Give a directory with a checkpoint. Raises `CheckpointNotFound`."""
    direct = storage.direct(storage_id)
    if direct is not None:
        refuse_unknown(storage, storage_id)
        if selector is not None:
            logger.warning("restore_path() gives the whole stored directory: selector ignored")
        yield direct
        return
    with _target(dist, shared) as path:
        download_checkpoint(dist, storage, storage_id, path, selector, shared)
        yield path


@contextlib.contextmanager
def _target(dist: DistributedContext, shared: bool) -> Iterator[Path]:
    if shared:
        with shared_directory(dist) as path:
            yield path
        return
    with tempfile.TemporaryDirectory(prefix="detslurm-") as name:
        yield Path(name)


def refuse_unknown(storage: Storage, storage_id: str) -> None:
    """Raise `CheckpointNotFound` unless the storage has the whole checkpoint."""
    if not storage.exists(storage_id):
        raise errors.CheckpointNotFound(
            f"there is no checkpoint {storage_id} under {storage.where}"
        )
