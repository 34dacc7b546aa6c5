"""Retries in the code that trains: a fault of the file system that passes costs time, no run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from detslurm.storage import Storage
from detslurm.store.retry import LONG, with_retries

logger = logging.getLogger("detslurm.core")

T = TypeVar("T")

_RETRIED: Final = frozenset(
    {
        "begin",
        "delete",
        "discard",
        "exists",
        "flush",
        "get",
        "metadata",
        "put",
        "put_file",
        "remove_files",
        "resources",
        "seal",
    }
)


def keep_trying(act: Callable[[], T]) -> T:
    """The result of `act`, which is idempotent, tried for minutes while the file system fails.

    A full disk or quota is raised at once: training goes on without a checkpoint.
    """
    return with_retries(act, _warn, LONG, for_room=False)


def _warn(error: Exception) -> None:
    logger.warning("the file system fails now, trying again: %s", error)


class _RetryingStorage:
    """A checkpoint storage whose calls are tried for minutes; each of them may be repeated."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if name not in _RETRIED:
            return found
        return lambda *args: keep_trying(lambda: found(*args))


def retrying(storage: Storage) -> Storage:
    """The same storage, for code that trains: each of its calls is tried for minutes."""
    return cast(Storage, _RetryingStorage(storage))


def discard_unsealed(storage: Storage, storage_id: str) -> None:
    """Remove the written files of a checkpoint, unless it is sealed; tried once.

    A sealed checkpoint stays: its record may still be written, and must not name missing files.
    Errors are ignored: there was another before, and the trial's next run removes the rest.
    """
    once = storage._storage if isinstance(storage, _RetryingStorage) else storage
    with contextlib.suppress(Exception):
        if not once.exists(storage_id):
            once.discard(storage_id)
