"""When a view that stays open looks again: soon while things change, rarely while nothing does."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.01
"""The most of one core that looking and drawing may take; the terminal takes the rest."""

SOONEST: Final = 1.0
LATEST: Final = 15.0
MOST: Final = 60.0
"""The longest pause after a slow look: the display gets no older, even if looks then take more
than `SHARE`."""


class PollInterval:
    """The pause between two looks, in seconds."""

    def __init__(self) -> None:
        self._pause = SOONEST

    def after(self, *, changed: bool, cost: float) -> float:
        """Return how long to wait after a look.

        Args:
            changed: Whether it has found anything new.
            cost: The processor time that the process took since the look before, in seconds.
        """
        self._pause = SOONEST if changed else min(1.5 * self._pause, LATEST)
        return max(self._pause, min(cost / SHARE, MOST))
