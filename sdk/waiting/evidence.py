"""The evidence about a waiting job: a few answers of the cluster, none older than a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detslurm.sdk.waiting.answer_cache import AnswerCache
from detslurm.sdk.waiting.jobs_ahead import JobsAhead, jobs_ahead
from detslurm.slurm import JobInfo, SlurmError
from detslurm.slurm.node_info import NodeInfo
from detslurm.slurm.pending_details import PendingDetails
from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.sdk.jobs.job import Job
    from detslurm.slurm import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvidence:
    """All that an explanation rests on; what a cluster does not show is empty.

    Attributes:
        job: The job, with the elements of its array that wait for the same reason.
        queue: All jobs of the cluster that wait or run, as far as the site shows them.
        ahead: The jobs that Slurm considers before it.
        nodes: The nodes, where they count.
        details: The cluster's own records.
        now: When it was put together, in unix seconds.
        as_of: When the oldest of the answers was given.
        unavailable: The missing parts, with the reasons.
    """

    job: Job
    queue: Sequence[JobInfo]
    ahead: JobsAhead = field(default_factory=JobsAhead)
    nodes: Sequence[NodeInfo] = ()
    details: PendingDetails = field(default_factory=PendingDetails)
    now: float
    as_of: float
    unavailable: tuple[str, ...] = ()

    @property
    def row(self) -> JobInfo:
        """The job's row of the queue."""
        return self.job.parts[0]


def gather(
    job: Job, queue: Sequence[JobInfo], cluster: Cluster, cache: AnswerCache, now: float
) -> JobEvidence:
    """Ask the cluster for what the job's reason calls for: at most four calls."""
    row = job.parts[0]
    if not row.waiting:
        return JobEvidence(job=job, queue=queue, now=now, as_of=cache.oldest)
    ahead = jobs_ahead(row, queue)
    ref, rival = row.refs[0], ahead.first or None
    missing: list[str] = []
    nodes: list[NodeInfo] = []
    if not row.reason or reason_of(row.reason).category == "resources":
        try:
            nodes = cache.get(f"nodes {cluster.name}", list[NodeInfo], cluster.nodes)
        except SlurmError as error:
            missing.append(f"the nodes ({error.message.splitlines()[0]})")
    details = cache.get(
        f"details {cluster.name} {ref} {row.reason} {rival}",
        PendingDetails,
        lambda: cluster.pending_details(row, ref, rival),
    )
    return JobEvidence(
        job=job,
        queue=queue,
        ahead=ahead,
        nodes=nodes,
        details=details,
        now=now,
        as_of=cache.oldest,
        unavailable=(*missing, *details.unavailable),
    )
