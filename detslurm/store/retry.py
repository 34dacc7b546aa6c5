"""Retries: a shared file system fails for a moment now and then, and comes back."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from detslurm.store.errors import FULL, NewerFormat, NotFound, RunTaken, StoreError, TrialEnded

T = TypeVar("T")

SHORT: Final = (0.5, 2.0, 8.0)
"""Seconds between tries where a user waits for the answer, or another node can go on."""

LONG: Final = (*SHORT, *(15.0,) * 14)
"""For a job, which is lost where it gives up: a file server takes minutes to fail over.

The steps stay short: until a search's last worker reaches the store, no standby waits for it."""

_FINAL: Final = frozenset(
    {
        errno.EBADF,
        errno.EEXIST,
        errno.EFBIG,
        errno.EINVAL,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOSYS,
        errno.ENOTDIR,
        errno.ENOTEMPTY,
        errno.EOPNOTSUPP,
        errno.EPIPE,
        errno.EROFS,
        errno.EXDEV,
    }
)


def is_transient(fault: OSError) -> bool:
    """Whether the same call may succeed later: a fault of the file system, not of the names.

    A refusal counts, because a directory that is closed may be opened again. So does an unknown
    code, because network file systems have codes of their own.
    """
    return fault.errno is not None and fault.errno not in _FINAL


def with_retries(
    act: Callable[[], T],
    report: Callable[[Exception], None],
    pauses: Iterable[float],
    *,
    for_room: bool = True,
) -> T:
    """The result of `act`, retried after each of the pauses; what the store answers is final.

    `act` must be idempotent. Without `for_room` a full disk or quota is final, too.
    """
    for pause in pauses:
        try:
            return act()
        except (NewerFormat, NotFound, RunTaken, TrialEnded):
            raise
        except (StoreError, OSError) as error:
            if not _may_pass(error, for_room=for_room):
                raise
            report(error)
        time.sleep(pause)
    return act()


def _may_pass(error: StoreError | OSError, *, for_room: bool) -> bool:
    if isinstance(error, OSError) and error.errno in FULL:
        return for_room
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return False  # a limit of the user's; what the store lacks otherwise may come back
    return isinstance(error, StoreError) or is_transient(error)
