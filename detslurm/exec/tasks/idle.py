"""A clock of idle time, for servers that end when no one uses them."""

from __future__ import annotations

import time
from collections.abc import Callable


class IdleClock:
    """Adds up the time without use, look by look.

    Args:
        limit: The seconds of idle time after which the server ends; None for never.
        interval: The seconds between two looks. A longer gap counts as one interval, because the
            job was suspended or its node was overloaded.
        clock: The time in seconds, by default a monotonic clock.
    """

    def __init__(
        self, limit: float | None, interval: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._interval, self._clock = limit, interval, clock
        self._looked, self.idle = clock(), 0.0

    def look(self, *, in_use: bool) -> bool:
        """Note a look at the server, and return whether it has been idle for too long."""
        passed = self._clock() - self._looked
        self._looked += passed
        gap = passed > 2 * self._interval
        self.idle = 0.0 if in_use else self.idle + (self._interval if gap else passed)
        return self._limit is not None and self.idle >= self._limit

    def unknown(self) -> None:
        """Note a look that failed: the time since the last look is neither idle nor in use."""
        self._looked = self._clock()
