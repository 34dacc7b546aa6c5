"""Pointers to the notices that wait, and the place of an attempt to send them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from detslurm._base import access, contract
from detslurm.store import ExperimentDir, Store, StoreError, fs

POINTERS: Final = "notices"
PAUSE: Final = 600.0
"""Seconds before a node that failed tries again, at first."""
_DAY: Final = 86400.0


def is_in_job() -> bool:
    """Whether this process belongs to a job."""
    return contract.job_of(os.environ) is not None


def here() -> str:
    """The place of an attempt: commands may have a route from a node where jobs have none."""
    return f"{socket.gethostname()} (job)" if is_in_job() else socket.gethostname()


def is_old(then: float) -> bool:
    """Whether a time is more than a day ago."""
    return time.time() - then > _DAY


def add_pointer(experiment: ExperimentDir, key: str) -> None:
    """Let the user's commands find a notice. Raises `StoreError`."""
    folder = experiment.store.own(POINTERS)
    fs.ensure_directory(folder, secret=True)
    fs.put_if_absent(folder / f"{experiment.id}.{key}", b"", secret=True)


def remove_pointer(experiment: ExperimentDir, key: str) -> None:
    """A notice is settled: nothing waits."""
    fs.discard(str(experiment.store.own(POINTERS) / f"{experiment.id}.{key}"))


def waiting(store: Store, only: int | None = None) -> Iterator[tuple[ExperimentDir, list[str]]]:
    """The experiments with notices that may wait, and their keys; of one experiment alone if asked.
    Root, who can read the stores of all users, has none there. Raises `StoreError`."""
    keys: dict[int, list[str]] = {}
    folder = store.own(POINTERS)
    for name in fs.names_in(folder) if is_mine(folder) else ():
        number, _, key = name.partition(".")
        if number.isdigit() and key and only in (None, int(number)):
            keys.setdefault(int(number), []).append(key)
    for experiment in sorted(keys):
        yield ExperimentDir(store, experiment), sorted(keys[experiment])


def is_mine(path: Path) -> bool:
    """Whether this user owns a directory. Raises `StoreError`."""
    uid = fs.owner_of(path, follow=False)
    return uid == os.geteuid() or (os.geteuid() != 0 and uid in access.UNKNOWN_OWNERS)


def was_tried_lately(store: Store) -> bool:
    """Whether sending has failed from this node a few minutes ago. Raises `StoreError`."""
    when = fs.read_file(_mark(store))
    return when is not None and 0 <= time.time() - float(when or 0) < PAUSE


def mark_failure(store: Store) -> None:
    """Spare the next commands on this node the time of a server that does not answer. Raises
    `StoreError`."""
    fs.replace_file(_mark(store), f"{time.time()}".encode(), sync=False, secret=True)


def _mark(store: Store) -> Path:
    return store.own(POINTERS) / f"failed-{here()}"


def is_stale(experiment: ExperimentDir, key: str) -> bool:
    """Whether a pointer without a notice is a day old: its process died between the two."""
    path = experiment.store.own(POINTERS) / f"{experiment.id}.{key}"
    try:
        written = fs.modified(path)
    except StoreError:
        return False
    return written is not None and is_old(written)
