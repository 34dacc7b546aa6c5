"""Decides, when the time is up, whether a sender may have sent anything."""

from __future__ import annotations

import threading
from collections.abc import Callable

from detslurm.notices.log import SendResult


class GaveUp(OSError):
    """The time was up before anything was sent."""


class SendGate:
    """A sender passes it right before it sends, unless it was closed before that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.has_passed = self._closed = False

    def enter(self) -> None:
        """From here on something may have been sent. Raises `GaveUp` if the gate is closed."""
        with self._lock:
            if self._closed:
                raise GaveUp("the time was up")
            self.has_passed = True

    def close(self) -> bool:
        """Whether nothing was sent, nor ever will be."""
        with self._lock:
            self._closed = True
            return not self.has_passed


def bounded(send: Callable[[SendGate], SendResult], seconds: float) -> SendResult:
    """Return the answer of `send`, or "later" or "unknown" after some seconds without it.

    A look-up of a host's name can't be interrupted, and a server may send a byte a second. So a
    thread sends, which this process doesn't wait for at its end.
    """
    gate, answers = SendGate(), list[SendResult]()
    thread = threading.Thread(target=lambda: answers.append(send(gate)), daemon=True)
    thread.start()
    thread.join(max(seconds, 0.0))
    if thread.is_alive() and gate.close():
        return SendResult("later", f"no connection within {seconds:.0f} s")
    return answers[0] if answers else SendResult("unknown", f"no answer within {seconds:.0f} s")
