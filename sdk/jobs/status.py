"""Interprets the queue's answer for a trial. Pure: no disk, no cluster, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from detslurm.slurm import JobInfo
from detslurm.slurm.hostlist import compress_hostlist
from detslurm.store import Job


class JobRef(NamedTuple):
    """Where a job is.

    Attributes:
        cluster: The name of the cluster.
        ref: The job's id there, or `ARRAY_INDEX` for an element of an array.
    """

    cluster: str
    ref: str

    @property
    def job_id(self) -> str:
        """The job or array that the ref belongs to."""
        return self.ref.partition("_")[0]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The known state of a trial's job.

    Attributes:
        job_ref: The newest job that was submitted for the trial; None if there is none.
        job: The queue's row of it; None if it is not there.
        alive: Whether it still waits or runs; None if unknown.
        message: Advice for the user; None if there is none.
    """

    job_ref: JobRef | None
    job: JobInfo | None = None
    alive: bool | None = None
    message: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the job is pending in the queue."""
        return self.job is not None and self.job.waiting


class QueueSnapshot(NamedTuple):
    """The answer of the queues, and the clusters that did not answer. `asked` is the time of the
    question, in seconds since 1970, where that is not just now."""

    jobs: Mapping[JobRef, JobInfo]
    unreachable: frozenset[str] = frozenset()
    asked: float | None = None


def job_refs(jobs: Iterable[Job]) -> dict[int, JobRef]:
    """Trial index -> reference of the newest job that works for it."""
    found: dict[int, JobRef] = {}
    for job in jobs:
        refs = job.refs
        for offset in range(job.count):
            found[job.first_index + offset] = JobRef(job.cluster, refs[offset // job.each])
    return found


def status_of(job_ref: JobRef | None, queue: QueueSnapshot, *, paused: bool = False) -> JobStatus:
    """Whether a trial's job is alive, and what the user should know of it."""
    if job_ref is None:
        return JobStatus(None, message="no job was ever submitted for it")
    job = queue.jobs.get(job_ref)
    if job is not None and job.final:
        where = f" on {compress_hostlist(job.nodes)}" if job.nodes else ""
        end = f"job {job_ref.ref} ended{where}: {described_end(job)}"
        return JobStatus(job_ref, job, False, end)
    if job is not None:
        return JobStatus(job_ref, job, True, _waiting(job, paused=paused))
    if job_ref.cluster in queue.unreachable:
        return JobStatus(job_ref)
    if job_ref.cluster == "local":
        text = f"job {job_ref.ref} is not known on this machine: it was submitted on another one"
        return JobStatus(job_ref, message=text)
    text = f"job {job_ref.ref} is not in the queue, and there is no record of how it ended"
    return JobStatus(job_ref, message=text)


def described_end(job: JobInfo) -> str:
    """How a job ended, for people."""
    if job.signal:
        return f"{job.state}, signal {job.signal}"
    return f"{job.state}, exit code {job.exit_code}" if job.exit_code else job.state


def _waiting(job: JobInfo, *, paused: bool) -> str | None:
    from detslurm.slurm.reasons import reason_of  # lists of finished experiments need none

    if not job.waiting:
        return None
    if job.held and paused:
        return None
    how = "is held" if job.held else "waits"
    why = f": {reason_of(job.reason).short}" if job.reason else ""
    return f"job {job.ref} {how} in the queue{why} ({job.reason or job.state})"
