"""Where a job stands among those that wait in its partition, and what may not be moved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from detslurm.sdk.jobs.changes import JobChange
from detslurm.sdk.jobs.job import Job


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where a pending job stands in the order in which Slurm considers the jobs of a partition.

    Jobs that are held are not counted: none of them can start.

    Attributes:
        job_id: The id of the job, or of the array whose waiting elements are meant.
        resource_pool: The partition that it waits in.
        rank: Its place among the pending jobs of its user there, counted from 1; 0 if it is held.
        own: How many pending jobs its user has there.
        others_ahead: How many jobs of other users stand before it; None if none can be seen.
        user: The user whose job it is; None if that is you.
    """

    job_id: str
    resource_pool: str
    rank: int
    own: int
    others_ahead: int | None
    user: str | None = None

    def __str__(self) -> str:
        if not self.rank:
            return f"job {self.job_id} is held: it starts after no job until it is released"
        whose = f"{self.user}'s" if self.user else "your"
        own = f"{ordinal(self.rank)} of {whose} {self.own} pending jobs"
        if self.own == 1:
            own = f"{whose} only pending job"
        text = f"job {self.job_id} is now {own} in {self.resource_pool}"
        if self.others_ahead is None:
            return text
        jobs = "job of others stands" if self.others_ahead == 1 else "jobs of others stand"
        return f"{text}; {self.others_ahead or 'no'} {jobs} before it"


def place_of(jobs: Sequence[Job], job_id: str, me: str) -> JobPlace | None:
    """A job's place among all jobs of the queue, in scheduling order, as shown to the user
    `me`; None if it waits no more.
    """
    job = waiting(jobs, job_id)
    if job is None:
        return None
    ids = [other.job_id for other in competing(jobs, job)]
    visible = any(other.user != job.user for other in jobs)
    pools = set(job.resource_pool.split(","))
    before = [other for other in jobs if other.position < job.position and _contends(other, pools)]
    others = {other.job_id for other in before if other.user != job.user}
    rank = 0 if job.held else ids.index(job_id) + 1
    count = len(others) if visible else None
    user = None if job.user == me else job.user
    return JobPlace(job_id, job.resource_pool, rank, len(ids), count, user)


def waiting(jobs: Iterable[Job], job_id: str) -> Job | None:
    """The pending job, or the foremost pending elements of the array; held ones if there are no
    others.
    """
    found = [job for job in jobs if job.job_id == job_id and job.waiting]
    return min(found, key=lambda job: (job.held, job.position), default=None)


def competing(jobs: Iterable[Job], job: Job) -> list[Job]:
    """The pending jobs of the same user in the same partition, one for each id, in their order."""
    found: dict[str, Job] = {}
    for other in jobs:
        same = (other.user, other.resource_pool) == (job.user, job.resource_pool)
        if same and other.waiting and not other.held and other.slurm_priority is not None:
            found.setdefault(other.job_id, other)
    return list(found.values())


def _contends(job: Job, pools: set[str]) -> bool:
    return job.waiting and not job.held and not pools.isdisjoint(job.resource_pool.split(","))


def refusal(jobs: Sequence[Job], change: JobChange) -> str | None:
    """Why a change makes no sense as the queue is now, and what would work; None if it does."""
    job = waiting(jobs, change.job_id)
    if job is None:
        return _not_waiting(jobs, change.job_id)
    if change.anchor is None:
        return None
    return _held(job) or _order_refusal(jobs, job, change)


def _not_waiting(jobs: Iterable[Job], job_id: str) -> str:
    job = next((job for job in jobs if job.job_id == job_id), None)
    if job is None:
        return (
            f"there is no job {job_id} in this queue: it has ended, or it is in that of another"
            " cluster; `detslurm job list` shows the jobs"
        )
    if job.experiment_id is None:
        return f"job {job_id} runs already: its place in the queue can't be changed"
    return (
        f"job {job_id} runs already: its place in the queue can't be changed; `detslurm experiment"
        f" pause {job.experiment_id}` would return its slots"
    )


def _held(job: Job) -> str | None:
    if not job.held:
        return None
    how = f"scontrol release {job.job_id}"
    if job.experiment_id is not None:
        how = f"detslurm experiment activate {job.experiment_id}"
    return f"job {job.job_id} is held, and has no place until it is released: `{how}`"


def _order_refusal(jobs: Sequence[Job], job: Job, change: JobChange) -> str | None:
    if change.anchor == job.job_id:
        return f"job {job.job_id} has no place ahead of itself, nor behind"
    anchor = waiting(jobs, str(change.anchor))
    if anchor is None:
        return _not_waiting(jobs, str(change.anchor))
    if anchor.user != job.user:
        return (
            f"job {anchor.job_id} belongs to {anchor.user}: only the site orders the jobs of"
            " different users; `detslurm job update"
            f" {job.job_id} --priority 1` gives yours all that you may"
        )
    if anchor.resource_pool != job.resource_pool:
        return (
            f"job {job.job_id} waits in {job.resource_pool}, job {anchor.job_id} in"
            f" {anchor.resource_pool}, and each partition has an order of its own; `detslurm job"
            f" update {job.job_id} --resource-pool {anchor.resource_pool}` brings them together"
        )
    return _held(anchor)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th."""
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{last or 'th'}"
