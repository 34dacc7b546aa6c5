"""Signals as something to wait for, and a clock of the time in which a job could run.

Slurm suspends jobs for others, or lets them take turns.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn, TypeVar

from detslurm._base.flag import ignore_signals

T = TypeVar("T")

_OTHERWISE: Final = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGPIPE),
    # These end no process unless it asked for that.
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGURG, signal.SIGWINCH),
    # The process's own faults.
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV),
    *(signal.SIGSYS, signal.SIGTRAP, signal.SIGXFSZ),
}
STRAY: Final = frozenset(signal.valid_signals()) - _OTHERWISE
"""Signals that others may send to a step, and whose default action would end a process."""


def discard_signals() -> None:
    """Receive stray signals and do nothing, where their default action would end this process."""
    # By a handler, not by SIG_IGN: that is inherited through an exec, and a shell can't trap what
    # was ignored when it started. Handlers are reset to the default action by the exec.
    for sig in STRAY:
        signal.signal(sig, _nothing)


def exit_with(status: int) -> NoReturn:
    """End this process with that status, also where a preemption's signal comes now.

    At its end Python gives its handlers up; and nodes do not get that signal at the same moment,
    while ranks leave by the word of the first.
    """
    ignore_signals()
    sys.exit(status)


def _nothing(number: int, frame: object) -> None:
    pass


class SignalInbox:
    """Collects the given signals; its file descriptor turns readable when a signal has come."""

    def __init__(
        self,
        signals: Iterable[signal.Signals],
        immediate: Mapping[signal.Signals, Callable[[], None]] | None = None,
    ) -> None:
        """`immediate` runs in the handler: for what must not wait until the signal is taken."""
        self._immediate = immediate or {}
        self._seen: set[signal.Signals] = set()
        self._reader, self._writer = os.pipe()
        # A pipe, so that select() wakes up: a signal that arrives just before the call would
        # otherwise be noticed only after its timeout. Python writes a byte to it in the C handler.
        os.set_blocking(self._reader, False)
        # A full pipe means thousands of unread signals: one more byte adds nothing.
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for sig in signals:
            signal.signal(sig, self._note)

    def _note(self, number: int, frame: object) -> None:
        # Runs between two bytecodes of the main thread, wherever that is: so it takes no lock,
        # which the interrupted code may hold, and writes no log.
        sig = signal.Signals(number)
        self._seen.add(sig)
        if sig in self._immediate:
            self._immediate[sig]()

    def fileno(self) -> int:
        return self._reader

    def close(self) -> None:
        """Collect no signals any more; their handlers stay, without effect."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until an unread signal is there, or the time is up."""
        select.select([self._reader], [], [], timeout)

    def take(self) -> set[signal.Signals]:
        """The signals that came since the last call."""
        # First the pipe, then the set: a signal between the two leaves a byte, which wakes the next
        # wait() for nothing. In the other order its byte would be gone and the signal unnoticed.
        try:
            while os.read(self._reader, 512):
                pass
        except BlockingIOError:
            pass
        # A handler that runs in the middle of this line adds to the set that is returned.
        seen, self._seen = self._seen, set()
        return seen


_WAIT: Final = 15.0


def is_gap(seconds: float) -> bool:
    """Whether what takes 15 seconds at most took so long that its node was suspended, or starved:
    nothing is known of a part of that time."""
    return seconds > 2 * _WAIT


class AwakeClock:
    """Monotonic seconds without those in which this process was suspended.

    No notice of a suspension comes: a wait that was too long shows it. Only waits count, because
    other calls take long while the code of the run goes on: a file server may be gone for hours.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._suspended = monotonic, 0.0

    def __call__(self) -> float:
        """Seconds since some moment."""
        return self._monotonic() - self._suspended

    def wait(self, select: Callable[[float], T], seconds: float) -> T:
        """The result of `select` after so many seconds, 15 at most, or before."""
        begun, asked = self._monotonic(), min(seconds, _WAIT)
        found = select(asked)
        if is_gap(waited := self._monotonic() - begun):
            self._suspended += waited - asked
        return found


awake_clock: Final = AwakeClock()
"""The clock of a runner, which waits by it for the reports of its agents."""
