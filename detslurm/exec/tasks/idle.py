"""A clock of idle time, for servers that end when no one uses them."""

from __future__ import annotations

import time
from collections.abc import Callable


class IdleClock:
    """Adds up the time without use, look by look; the server ends after `limit` seconds of it.

    A gap between looks that is much longer than `interval` (seconds) counts as one interval: the
    job was suspended, or its node was overloaded.
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
