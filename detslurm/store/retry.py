"""Retries: a shared file system fails for a moment now and then, and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from detslurm.store.errors import NotFound, RunTaken, StoreError, TrialEnded

T = TypeVar("T")

SHORT: Final = (0.5, 2.0, 8.0)
"""Seconds between tries for code that trains meanwhile."""

LONG: Final = (*SHORT, *(15.0,) * 14)
"""For a runner, whose job is lost where it gives up: a file server takes minutes to fail over.

The steps stay short: until a search's last worker reaches the store, no standby waits for it."""


def with_retries(
    act: Callable[[], T], report: Callable[[StoreError], None], pauses: Sequence[float]
) -> T:
    """The result of `act`, retried after each of the pauses; what the store answers is final.

    `act` must be idempotent.
    """
    for pause in pauses:
        try:
            return act()
        except (NotFound, RunTaken, TrialEnded):
            raise
        except StoreError as error:
            report(error)
        time.sleep(pause)
    return act()
