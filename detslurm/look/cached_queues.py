"""Queues that are asked at most every half minute, however many people look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from detslurm.sdk.job_status import JobRef, QueueSnapshot
from detslurm.sdk.queues import Queues

QUEUE_SECONDS: Final = 30.0


class CachedQueues(Queues):
    """Queues that answer from memory until their last answer is old.

    A question whose time has come decides which jobs the queue is asked about: until the next one,
    the clusters of other jobs count as unreachable, for nothing is known of these. Not for several
    threads at once.

    Args:
        queues: Where the answers come from.
        seconds: For how long an answer is used.
        clock: Gives seconds that never go back.
    """

    def __init__(
        self,
        queues: Queues,
        seconds: float = QUEUE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.warnings: list[str] = []
        super().__init__(queues.cluster, self.warnings.append)
        self._seconds = seconds
        self._clock = clock
        self._asked_at: float | None = None
        self._covered: frozenset[JobRef] = frozenset()
        self._answer = QueueSnapshot({})

    @property
    def due(self) -> bool:
        """Whether the next question goes to the clusters."""
        return self._asked_at is None or self._clock() - self._asked_at >= self._seconds

    def query(
        self,
        wanted: Iterable[JobRef],
        *,
        since: float | None = None,
        queue_only: Iterable[JobRef] = (),
    ) -> QueueSnapshot:
        """As `Queues.query`, from memory while the last answer is fresh."""
        sure, more = frozenset(wanted), frozenset(queue_only)
        if self.due:
            self.warnings.clear()
            self._covered = sure | more
            self._answer = super().query(sure, since=since, queue_only=more)
            # A cluster that takes long to refuse is left alone for as long as one that answers.
            self._asked_at = self._clock()
        unknown = {job_ref.cluster for job_ref in (sure | more) - self._covered}
        return QueueSnapshot(self._answer.jobs, self._answer.unreachable | unknown)
