"""A cluster of which a view that stays open takes one listing of the queue, at long intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from detslurm.sdk.experiments.polling import QUEUE_SECONDS
from detslurm.sdk.jobs.queues import Connect
from detslurm.slurm import Cluster, JobInfo, SlurmError

Clock = Callable[[], float]

_UNKNOWN_SECONDS: Final = 120.0
"""Before the cluster is asked again for the end of a job of which it did not know any."""


class PacedCluster:
    """Answers from the last listing of the queue, which is at most `QUEUE_SECONDS` old.

    The fate of jobs that left the queue is another question to the controller: it takes the
    place of a listing, at most every other one. A question that failed counts, too: a controller in
    trouble is not asked more often. Everything else goes straight to the cluster.
    """

    def __init__(self, cluster: Cluster, clock: Clock = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asked: float | None = None
        self._rows: list[JobInfo] = []
        self._refusal: SlurmError | None = None
        # Jobs of which an end is wanted, and since when.
        self._missing: dict[str, float | None] = {}
        self._ends = _Ends()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    @property
    def due(self) -> bool:
        """Whether the next question goes to the cluster."""
        return self._asked is None or self._clock() - self._asked >= QUEUE_SECONDS

    def queue(self, *, partition: str | None = None) -> list[JobInfo]:
        """All jobs that wait or run, as of the last listing."""
        if self.due:
            self._ask()
        if self._refusal is not None:
            raise self._refusal
        return [row for row in self._rows if partition is None or partition in row.partitions]

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        """The rows of these jobs in the last listing."""
        wanted = frozenset(job_ids)
        rows = [row for row in self.queue() if row.job_id in wanted]
        return {ref: replace(row, ref=ref) for row in rows for ref in row.refs}

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        """The known records of jobs that left the queue; the rest is asked for next."""
        now = self._clock()
        self._missing |= {ref: since for ref in job_ids if self._ends.is_open(ref, now)}
        if self._ends.refusal is not None:
            raise self._ends.refusal
        return {ref: self._ends.jobs[ref] for ref in job_ids if ref in self._ends.jobs}

    def _ask(self) -> None:
        try:
            if self._missing and self._refusal is None:
                self._ask_ends()
            else:
                self._ask_queue()
        finally:
            self._asked = self._clock()

    def _ask_queue(self) -> None:
        self._refusal = None
        try:
            self._rows = self._cluster.queue()
        except SlurmError as error:
            self._refusal = error

    def _ask_ends(self) -> None:
        refs, self._missing = self._missing, {}
        since = min((at for at in refs.values() if at is not None), default=None)
        self._ends.asked |= dict.fromkeys(refs, self._clock())
        self._ends.refusal = None
        try:
            self._ends.jobs |= self._cluster.evidence(list(refs), since=since)
        except SlurmError as error:
            self._ends.refusal = error


@dataclass
class _Ends:
    """The cluster's records of jobs, and the time of the question."""

    jobs: dict[str, JobInfo] = field(default_factory=dict)
    asked: dict[str, float] = field(default_factory=dict)
    refusal: SlurmError | None = None

    def is_open(self, ref: str, now: float) -> bool:
        """Whether it is worth a question how a job ended."""
        known = self.jobs.get(ref)
        if known is not None and known.final:
            return False
        return ref not in self.asked or now - self.asked[ref] >= _UNKNOWN_SECONDS


class PacedClusters:
    """Connects to clusters; those that turn out to be the same one share their listing."""

    def __init__(self, connect: Connect, clock: Clock = time.monotonic) -> None:
        self._connect = connect
        self._clock = clock
        self._known: dict[str, PacedCluster] = {}

    def __call__(self, name: str) -> Cluster:
        """The cluster of that name."""
        found = self._connect(name)
        paced = self._known.setdefault(found.name, PacedCluster(found, self._clock))
        return cast(Cluster, paced)

    @property
    def due(self) -> bool:
        """Whether any of them would be asked now."""
        return not self._known or any(one.due for one in self._known.values())
