"""Signals as something to wait for: a handler only sets a flag and wakes the loop."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Final

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
"""What anybody may send to a step, and would end a process that has no use for it."""


def discard_signals(signals: Iterable[int] = STRAY) -> None:
    """Let signals pass that are none of this process's business.

    By a handler: what it starts would inherit that they are ignored, and could not trap them.
    """
    for sig in signals:
        signal.signal(sig, _nothing)


def _nothing(number: int, frame: object) -> None:
    pass


class SignalInbox:
    """Collects the given signals; its file descriptor turns readable when one has come."""

    def __init__(
        self,
        signals: Iterable[signal.Signals],
        at_once: Mapping[signal.Signals, Callable[[], None]] | None = None,
    ) -> None:
        """`at_once` runs in the handler: for what must not wait until somebody takes the signal."""
        self._at_once = at_once or {}
        self._seen: set[signal.Signals] = set()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for sig in signals:
            signal.signal(sig, self._note)

    def _note(self, number: int, frame: object) -> None:
        sig = signal.Signals(number)
        self._seen.add(sig)
        if sig in self._at_once:
            self._at_once[sig]()

    def fileno(self) -> int:
        return self._reader

    def wait(self, timeout: float | None = None) -> None:
        """Wait until a signal has come that nobody took yet, or the time is up."""
        select.select([self._reader], [], [], timeout)

    def take(self) -> set[signal.Signals]:
        """The signals that came since the last look."""
        try:
            while os.read(self._reader, 512):
                pass
        except BlockingIOError:
            pass
        seen, self._seen = self._seen, set()
        return seen
