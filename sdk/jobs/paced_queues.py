"""Queues for programs that stay open: one question every half minute answers all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from detslurm.sdk.jobs.queues import QUEUE_SECONDS, Clock, Connect, Queues
from detslurm.sdk.jobs.status import JobRef, QueueSnapshot
from detslurm.slurm import Cluster, JobInfo, SlurmError

_UNKNOWN_SECONDS: Final = 120.0
"""Before the cluster is asked again for the end of a job of which it did not know any."""

_PATIENCE: Final = 3.0


class PacedQueues(Queues):
    """Queues that answer from the last listing, which is at most `QUEUE_SECONDS` old.

    A busy scheduler may take half a minute to answer, too long for a page or a screen: until it
    has, the answer before counts. Questions come from one thread at a time.

    Args:
        connect: Returns the cluster of a name; names of the same cluster share their listing.
        patience: How long a question waits for a new answer, in seconds.
    """

    def __init__(
        self,
        connect: Connect,
        warn: Callable[[str], None],
        clock: Clock = time.monotonic,
        patience: float = _PATIENCE,
    ) -> None:
        super().__init__(connect, warn)
        self._clock, self._patience = clock, patience
        self._listings: dict[str, _Listing] = {}

    @property
    def due(self) -> bool:
        """Whether the next query may bring something new."""
        return not self._listings or any(one.due for one in self._listings.values())

    @property
    def asked(self) -> float | None:
        """When the oldest listing was asked for, in seconds since 1970; None before any."""
        return min((at for one in self._listings.values() if (at := one.asked)), default=None)

    def listing(self, name: str, partition: str | None = None) -> list[JobInfo]:
        """As `Queues.listing`, from memory."""
        rows = self._of(name).rows()
        return [row for row in rows if partition is None or partition in row.partitions]

    def query(
        self,
        wanted: Iterable[JobRef],
        *,
        since: float | None = None,
        queue_only: Iterable[JobRef] = (),
    ) -> QueueSnapshot:
        """As `Queues.query`, from memory. The clusters of jobs that no answer covers so far count
        as unreachable, because the jobs may be newer than the listing."""
        for one in self._listings.values():
            one.uncovered = False
        found = super().query(wanted, since=since, queue_only=queue_only)
        late = {name for name, one in self._listings.items() if one.is_asking}
        for name in sorted(late):
            self.warn(f"{name} has not answered yet; states may be old")
        unknown = {name for name, one in self._listings.items() if one.uncovered}
        return found._replace(unreachable=found.unreachable | unknown, asked=self.asked)

    def _jobs(self, name: str, job_ids: Collection[str]) -> dict[str, JobInfo]:
        return self._of(name).jobs(frozenset(job_ids))

    def _ends(self, name: str, refs: Collection[str], since: float | None) -> Mapping[str, JobInfo]:
        return self._of(name).ends(refs, since)

    def _of(self, name: str) -> _Listing:
        cluster = self.cluster(name)
        if cluster.name not in self._listings:
            self._listings[cluster.name] = _Listing(cluster, self._clock, self._patience)
        return self._listings[cluster.name]


class _Listing:
    """A cluster's last listing, and the ends of jobs that left its queue, which take the place of
    at most every other listing. A question that failed counts, too."""

    def __init__(self, cluster: Cluster, clock: Clock, patience: float) -> None:
        self._cluster, self._clock, self._patience = cluster, clock, patience
        self._asking: threading.Thread | None = None
        self._asked_at: float | None = None  # anything
        self._listed_at = 0.0
        self.asked: float | None = None  # the listing, by the time of day
        self._rows: list[JobInfo] = []
        self._refusal: SlurmError | None = SlurmError("there is no answer yet")
        self._known_ends: dict[str, JobInfo] = {}
        self._ends_refusal: SlurmError | None = None
        self._wanted_at: dict[str, float] = {}  # jobs of which anything was wanted first
        self._tried_at: dict[str, float] = {}  # jobs of which the end was asked for last
        self._missing: dict[str, float | None] = {}  # jobs of which an end is wanted, since when
        self.uncovered = False  # whether a wanted job is in no answer
        self._answers = self._seen = 0  # how many there were, and at the last query

    @property
    def is_asking(self) -> bool:
        """Whether a question has no answer yet."""
        return self._asking is not None and self._asking.is_alive()

    @property
    def due(self) -> bool:
        """Whether an answer has come since the last query, or it is time for a question."""
        return self._seen != self._answers or self._may_ask

    @property
    def _may_ask(self) -> bool:
        if self.is_asking:
            return False
        return self._asked_at is None or self._clock() - self._asked_at >= QUEUE_SECONDS

    def rows(self) -> list[JobInfo]:
        """All jobs that wait or run. Raises SlurmError as long as the cluster refuses."""
        self._refresh()
        if self._refusal is not None:
            raise self._refusal
        return self._rows

    def _refresh(self) -> None:
        if self._may_ask:
            # Decided here: the other thread must not change what this thread collects.
            question = self._ask_queue
            if self._missing and self._refusal is None:
                question = partial(self._ask_ends, self._missing)
                self._tried_at |= dict.fromkeys(self._missing, self._clock())
                self._missing = {}
            self._asking = threading.Thread(target=self._ask, args=(question,), daemon=True)
            self._asking.start()
            self._asking.join(self._patience)

    def jobs(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        """The rows of these jobs."""
        for job_id in job_ids:
            self._wanted_at.setdefault(job_id, self._clock())
        self._refresh()
        self._seen = self._answers  # before the rows: the next answer may come now
        rows = [row for row in self.rows() if row.job_id in job_ids]
        newer = {job for job in job_ids if self._listed_at < self._wanted_at[job]}
        self.uncovered |= bool(newer - {row.job_id for row in rows})
        return {ref: replace(row, ref=ref) for row in rows for ref in row.refs}

    def ends(self, refs: Collection[str], since: float | None) -> dict[str, JobInfo]:
        """The known ends of jobs that are not in the listing; the next question is about others."""
        self._missing |= {ref: since for ref in refs if self._is_open(ref)}
        self.uncovered |= any(ref not in self._tried_at for ref in refs)
        if self._ends_refusal is not None:
            raise self._ends_refusal
        return {ref: self._known_ends[ref] for ref in refs if ref in self._known_ends}

    def _is_open(self, ref: str) -> bool:
        """Whether a job has left the queue, and it is worth a question how it ended."""
        if self._listed_at < self._wanted_at[ref.partition("_")[0]]:
            return False  # the job may be newer than the listing
        known = self._known_ends.get(ref)
        if known is not None and known.final:
            return False
        tried = self._tried_at.get(ref)
        return tried is None or self._clock() - tried >= _UNKNOWN_SECONDS

    def _ask(self, question: Callable[[], None]) -> None:
        try:
            question()
        finally:
            # A scheduler that takes long to refuse is left alone as long as if it answered.
            self._asked_at = self._clock()
            self._answers += 1

    def _ask_queue(self) -> None:
        listed_at, asked = self._clock(), time.time()
        try:
            self._rows = self._cluster.queue()
        except SlurmError as error:
            self._refusal = error
        else:
            self._listed_at, self.asked, self._refusal = listed_at, asked, None

    def _ask_ends(self, refs: Mapping[str, float | None]) -> None:
        since = min((at for at in refs.values() if at is not None), default=None)
        try:
            self._known_ends |= self._cluster.evidence(list(refs), since=since)
            self._ends_refusal = None
        except SlurmError as error:
            self._ends_refusal = error
