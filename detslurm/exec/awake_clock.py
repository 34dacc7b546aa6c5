"""The time in which a job could run: Slurm suspends jobs for others, or lets them take turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

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
"""That of a runner, which waits by it for what its agents report."""
