"""Whether the group of peers is whole, and how long to wait for what."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from detslurm._base import contract

if TYPE_CHECKING:
    from detslurm.core.transports.call_sequence import CallSequence

# A rank that waits checks its peers this often; no call is ever slower for it.
CHECK_INTERVAL = 0.5


class DistributedError(RuntimeError):
    """The ranks of a trial can't work together: one died or left, or they disagree."""


class Health:
    """The error that ended the group, if any; shared by all links of a rank."""

    def __init__(self) -> None:
        self.failure: str | None = None
        self._closed = False
        # Reentrant: a hook may find a second failure (a broken connection) while it reports the
        # first.
        self._lock = threading.RLock()
        self._hooks: list[Callable[[str], None]] = []
        self.checks: list[Callable[[CallSequence], None]] = []

    def on_failure(self, hook: Callable[[str], None]) -> None:
        """Call `hook(reason)` when the group fails, in the thread that learns of it."""
        with self._lock:
            self._hooks.append(hook)
            # A peer may have died since its connections were made, before its communicator: the
            # others must learn that, not only that this rank leaves.
            if self.failure is not None:
                hook(self.failure)

    def run_checks(self, sequence: CallSequence) -> None:
        """Run the checks that a waiting rank repeats, in whichever communicator it waits."""
        for check in self.checks:
            check(sequence)

    def fail(self, reason: str) -> None:
        """The group is over, by the first reason given; after `close()` nothing counts."""
        with self._lock:
            if self.failure is not None or self._closed:
                return
            # First the reason, then the hooks: they interrupt threads that wait, which look for it.
            # The first reason stays: the errors that follow from it would hide the cause.
            self.failure = reason
            for hook in self._hooks:
                hook(reason)

    def check(self) -> None:
        """Raise `DistributedError` when the group has failed."""
        if self.failure is not None:
            raise DistributedError(self.failure)

    def error(self, reason: str) -> DistributedError:
        """Fail by `reason` and give the error to raise: an earlier reason comes first."""
        self.fail(reason)
        return DistributedError(self.failure or reason)

    def close(self) -> None:
        """This rank leaves: what happens to the others is not a failure of its own any more."""
        # The lock makes this wait until a failure that was just found has been sent to all peers:
        # they would otherwise see this rank leave, and blame it.
        with self._lock:
            self._closed = True


def peer_timeout() -> float:
    """After how many seconds of silence of its host a peer is taken for dead."""
    return _seconds(contract.PEER_TIMEOUT, 30.0)


def join_timeout() -> float:
    """How long a rank waits for the others at the start: imports on a full machine take minutes."""
    return _seconds(contract.JOIN_TIMEOUT, 600.0)


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError(f"{name}={text!r}: a number of seconds above 0 is needed")
    return value
