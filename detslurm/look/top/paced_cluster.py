"""A cluster of which a view that stays open takes one listing of the queue, at long intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, cast

from detslurm.sdk.polling import QUEUE_SECONDS
from detslurm.sdk.queues import Connect
from detslurm.slurm import Cluster, JobInfo, SlurmError
from detslurm.slurm.queued_job import QueuedJob

Clock = Callable[[], float]


class PacedCluster:
    """Answers from the last listing of the queue, which is at most `QUEUE_SECONDS` old.

    A listing that failed counts, too: a controller in trouble is not asked more often. Everything
    but the queue goes straight to the cluster.
    """

    def __init__(self, cluster: Cluster, clock: Clock = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._asked: float | None = None
        self._rows: list[QueuedJob] = []
        self._refusal: SlurmError | None = None
        self._ends: dict[frozenset[str], dict[str, JobInfo]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    @property
    def due(self) -> bool:
        """Whether the next question goes to the cluster."""
        return self._asked is None or self._clock() - self._asked >= QUEUE_SECONDS

    def queue(self, *, partition: str | None = None) -> list[QueuedJob]:
        """All jobs that wait or run, as of the last listing."""
        if self.due:
            self._ask()
        if self._refusal is not None:
            raise self._refusal
        return [row for row in self._rows if partition is None or partition in row.partitions]

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        """What the last listing has of these jobs."""
        wanted = frozenset(job_ids)
        rows = [row for row in self.queue() if row.job_id in wanted]
        return {ref: _info(row, ref) for row in rows for ref in row.refs}

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        """What is remembered of jobs that left the queue, asked once after each listing."""
        key = frozenset(job_ids)
        if key not in self._ends:
            self._ends[key] = self._cluster.evidence(job_ids, since=since)
        return self._ends[key]

    def _ask(self) -> None:
        self._refusal = None
        self._ends = {}
        try:
            self._rows = self._cluster.queue()
        except SlurmError as error:
            self._refusal = error
        finally:
            self._asked = self._clock()


def _info(row: QueuedJob, ref: str) -> JobInfo:
    return JobInfo(
        ref=ref,
        state=row.state,
        reason=row.reason,
        partition=",".join(row.partitions),
        nodes=row.nodes,
        time_left=row.time_left,
        priority=row.priority,
        submitted=row.submitted,
        expected_start=row.expected_start,
        folder=row.folder,
    )


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
