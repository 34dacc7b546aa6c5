"""Errors of the store, each with the path and a remedy in its text."""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from detslurm._base.display import ShownAsText


class StoreError(ShownAsText, Exception):
    """The store can't meet a request; the text gives the reason and the remedy."""


class NotFound(StoreError):
    """No such experiment, trial or run in this store."""


class Refused(StoreError):
    """The request is not allowed as things are; nothing was written."""


class CorruptRecord(StoreError):
    """A record does not carry the checksum that its bytes have."""


class RecordMissing(StoreError):
    """A numbered record was lost: later ones are there."""

    def __init__(self, path: object, consequence: str) -> None:
        self.path = str(path)
        self.problem = (
            f"is missing, although later records are there: {consequence}. Restore the file"
            " from a backup, or let `detslurm gc` rebuild it where other records allow that. If it"
            " is lost for good, create an empty file in its place"
        )
        super().__init__(f"{path} {self.problem}")


class NewerFormat(StoreError):
    """Records follow rules that only a newer detslurm knows."""

    def __init__(self, path: object, version: int) -> None:
        self.path, self.version = str(path), version
        self.problem = (
            f"was written by a newer detslurm (format {version}). This one shows what it can read"
            " there, and decides, writes and deletes nothing. Use the newer one: load its module,"
            " or install it"
        )
        super().__init__(f"{path} {self.problem}")


class NoHardLinks(StoreError):
    """The file system has no hard links, so nothing can be claimed safely on it."""


class StoreFault(StoreError, OSError):
    """The file system refused an operation; see `errno` and `path`."""

    def __init__(self, message: str, code: int, path: str) -> None:
        super().__init__(code, message)
        self.path = path

    def __str__(self) -> str:
        return str(self.args[1])


class StoreFull(StoreFault):
    """No space, inodes or quota left; the data are kept where the caller can retry."""


class TrialEnded(StoreError):
    """The trial already has its end record: no further run may start."""


class RunTaken(StoreError):
    """Another process claimed this run first."""


class Problem(NamedTuple):
    """Something unreadable that a reader skipped: where it lies and why it was skipped."""

    path: str
    offset: int
    reason: str


TORN: Final = "torn tail"
"""The reason of a problem that hides nothing which was ever committed."""

FULL = (errno.ENOSPC, errno.EDQUOT)
LINKLESS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


def is_refusal(fault: OSError) -> bool:
    """Whether something is there, and only this user may not have it."""
    return fault.errno in (errno.EACCES, errno.EPERM)


def not_seen_yet(path: object) -> StoreError:
    """For a fact whose number is taken, and that can't be read."""
    return StoreError(f"{path} exists but cannot be read on this node yet: try again")


def explained(error: OSError, path: str) -> StoreFault:
    """Turn an OSError into the store's own, which names the path and the way out."""
    code = error.errno or 0
    # Users have never seen the name that a file has until it is whole, and it is gone by now.
    shown = os.path.dirname(path) if path.endswith(".tmp") else path  # noqa: PTH120 (plain strings)
    if code == errno.EDQUOT:
        text = f"disk quota exceeded on the file system of {shown}: free some or ask for more"
        return StoreFull(text, code, path)
    if code == errno.ENOSPC:
        return StoreFull(f"{_what_is_full(path)} left on the file system of {shown}", code, path)
    return StoreFault(f"{shown}: {os.strerror(code) if code else error}", code, path)


def _what_is_full(path: str) -> str:
    try:
        state = os.statvfs(os.path.dirname(path) or ".")  # noqa: PTH120 (plain strings here)
    except OSError:
        return "no space"
    return "no inodes" if state.f_files and not state.f_favail else "no space"
