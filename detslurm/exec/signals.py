"""Signals as something to wait for: a handler only sets a flag and wakes the loop."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable


class SignalInbox:
    """Collects the given signals; its file descriptor turns readable when one has come."""

    def __init__(
        self, signals: Iterable[signal.Signals], at_once: Callable[[], None] = lambda: None
    ) -> None:
        """`at_once` runs in the handler: for what must not wait until somebody takes the signal."""
        self._at_once = at_once
        self._seen: set[signal.Signals] = set()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for sig in signals:
            signal.signal(sig, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._seen.add(signal.Signals(number))
        self._at_once()

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
