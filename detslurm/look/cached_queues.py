"""Queues that are asked at most every half minute, however many people look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from detslurm.sdk.experiments.polling import QUEUE_SECONDS
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.jobs.status import JobRef, QueueSnapshot

PATIENCE: Final = 3.0


class _Answer(NamedTuple):
    """The queues' answers, the jobs they were asked for, and the errors."""

    snapshot: QueueSnapshot
    covered: frozenset[JobRef]
    warnings: tuple[str, ...]


class CachedQueues(Queues):
    """Queues that answer from memory until their last answer is old.

    A question whose time has come decides which jobs the queues are asked about: until the next
    question, the clusters of other jobs count as unreachable, for nothing is known of these. A busy
    scheduler may take half a minute to answer, too long for a page: until it has, the
    answer before counts.

    Questions come from one thread at a time.

    Args:
        queues: Where the answers come from.
        clock: Gives seconds that never go back.
        patience: How long a question waits for a new answer, in seconds.
    """

    def __init__(
        self,
        queues: Queues,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(queues.cluster, lambda text: None)
        self._clock = clock
        self._patience = patience
        self._asked_at: float | None = None
        self._asking: threading.Thread | None = None
        # Replaced as a whole by the thread that asks.
        self._answer = _Answer(QueueSnapshot({}), frozenset(), ())

    @property
    def due(self) -> bool:
        """Whether the next question goes to the clusters."""
        if self._is_asking:
            return False
        return self._asked_at is None or self._clock() - self._asked_at >= QUEUE_SECONDS

    @property
    def warnings(self) -> list[str]:
        """Warnings from the last question."""
        late = ["the queue has not answered yet; states may be old"] if self._is_asking else []
        return [*self._answer.warnings, *late]

    def query(
        self,
        wanted: Iterable[JobRef],
        *,
        since: float | None = None,
        queue_only: Iterable[JobRef] = (),
    ) -> QueueSnapshot:
        """As `Queues.query`, from memory while the last answer is fresh or the next one is late."""
        sure, more = frozenset(wanted), frozenset(queue_only)
        if self.due:
            self._asking = threading.Thread(target=self._ask, args=(sure, more, since), daemon=True)
            self._asking.start()
            self._asking.join(self._patience)
        known, covered, _ = self._answer
        unknown = {job_ref.cluster for job_ref in (sure | more) - covered}
        return known._replace(unreachable=known.unreachable | unknown)

    @property
    def _is_asking(self) -> bool:
        return self._asking is not None and self._asking.is_alive()

    def _ask(self, sure: frozenset[JobRef], more: frozenset[JobRef], since: float | None) -> None:
        warnings: list[str] = []
        began = time.time()
        try:
            queues = Queues(self.cluster, warnings.append)
            found = queues.query(sure, since=since, queue_only=more)
            self._answer = _Answer(found._replace(asked=began), sure | more, tuple(warnings))
        finally:
            # A scheduler that takes long to refuse is left alone as long as if it answered.
            self._asked_at = self._clock()
