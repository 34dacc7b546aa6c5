"""When to leave: preemption, and the trial's own request, agreed on by all ranks."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

from detslurm.core import DistributedContext, PreemptContext

_AGREE_EVERY = 0.1
"""Seconds between two agreements; the limit for SIGTERM to `should_preempt()` is 0.5."""

_MOST_BATCHES = 100
"""Between two agreements, however fast they were until now: the next ones may be slow."""


class Stop(enum.Enum):
    """Whether to go on."""

    NO = 0
    REQUESTED = 1
    PREEMPTED = 2


class Stopper:
    """Decides after every batch whether to leave.

    A single process reads its flag, which costs nothing. Several ranks must leave after the same
    batch: the chief broadcasts its flag, rarely enough to cost next to no time, with the number of
    batches until the next broadcast.
    """

    def __init__(
        self, dist: DistributedContext, preempt: PreemptContext, requested: Callable[[], bool]
    ) -> None:
        self._dist, self._preempt, self._requested = dist, preempt, requested
        self._alone = dist.size == 1
        self._next = 0
        self._last: tuple[float, int] | None = None  # a run may begin at any batch
        self._preempted = False

    def after_batch(self, batches: int) -> Stop:
        """Whether to leave after this number of batches; ranks may find out a few batches later."""
        if self._alone:
            return self._seen()
        return self.agreed(batches) if batches >= self._next else Stop.NO

    def agreed(self, batches: int, requested_on_any_rank: bool = False) -> Stop:
        """Whether to leave, the same on all ranks, which must all call."""
        if self._alone:
            return self._seen()
        seen = self._seen() if self._dist.rank == 0 else Stop.NO
        if seen is Stop.NO and requested_on_any_rank:
            seen = Stop.REQUESTED
        stop, self._next = self._dist.broadcast((seen, batches + self._pace(batches)))
        if stop is Stop.PREEMPTED and self._dist.rank != 0 and not self._preempted:
            self._preempted = True
            self._preempt.acknowledge_preemption_signal()  # on this rank's node, too
        return Stop(stop)

    def _seen(self) -> Stop:
        if self._preempt.should_preempt():
            return Stop.PREEMPTED
        return Stop.REQUESTED if self._requested() else Stop.NO

    def _pace(self, batches: int) -> int:
        now, last = time.monotonic(), self._last
        self._last = now, batches
        if last is None or batches == last[1] or now <= last[0]:
            return 1
        pace = int(_AGREE_EVERY * (batches - last[1]) / (now - last[0]))
        return max(1, min(pace, _MOST_BATCHES))
