"""The order of pending jobs, and nice values that change it. Pure: no queue, no clock.

Slurm considers the jobs of a partition by their priority, the greatest first, and of equal ones the
smallest id first. An ordinary user may not raise a priority, but every job carries a nice, which is
subtracted from it, and which its owner may change down to 0. So a job is brought forward as far as
its own nice reaches; where that is not enough, jobs behind it give way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from detslurm.sdk.jobs.job import Job

LEAST_PRIORITY = 2
"""Below it Slurm cuts off what a nice subtracts: the order would be that of the ids."""
# Ages grow between two calls and Slurm rounds each sum: a new order must survive one point.
_MARGIN = 1


@dataclass(frozen=True, slots=True)
class Rank:
    """A pending job in Slurm's order: `priority` is Slurm's, with the nice subtracted."""

    job_id: int
    priority: int
    nice: int

    @property
    def place(self) -> tuple[int, int]:
        """The key of its order."""
        return -self.priority, self.job_id

    def with_nice(self, nice: int) -> Rank:
        """The same job with another nice."""
        return replace(self, nice=nice, priority=self.priority + self.nice - nice)


def in_order(ranks: Iterable[Rank]) -> list[Rank]:
    """Jobs as Slurm considers them."""
    return sorted(ranks, key=lambda rank: rank.place)


def moved(ranks: Iterable[Rank], job_id: int, anchor: int, *, ahead: bool) -> list[Rank]:
    """Jobs in the wanted order: one directly ahead of another, or behind it, or where it is if that
    is so already."""
    now = in_order(ranks)
    ids = [rank.job_id for rank in now]
    if (ids.index(job_id) < ids.index(anchor)) == ahead:
        return now
    job = now.pop(ids.index(job_id))
    ids.remove(job_id)
    now.insert(ids.index(anchor) + (not ahead), job)
    return now


def nice_values(
    wanted: Sequence[Rank], job_id: int, *, least_nice: int | None = 0, least_priority: int | None
) -> dict[int, int] | None:
    """The nice values to set for the order `wanted` of pending jobs of one partition, by job id.

    The job `job_id` moves, as far as its nice reaches; the jobs behind it then give way by the
    least that is enough. `least_nice` is the smallest nice that the user may set (None for an
    operator), `least_priority` the smallest priority that may result (None for any); the result is
    None where that is not enough.
    """
    place = [rank.job_id for rank in wanted].index(job_id)
    found = list(wanted)
    if place + 1 < len(found):
        _raise(found, place, least_nice)
    for before, behind in pairwise(range(max(place - 1, 0), len(found))):
        most = found[before].priority - _gap(wanted[before], wanted[behind])
        rank = found[behind]
        if rank.priority > most:
            found[behind] = rank.with_nice(rank.nice + rank.priority - most)
            if least_priority is not None and most < least_priority:
                return None
    pairs = zip(wanted, found, strict=True)
    return {new.job_id: new.nice for old, new in pairs if new.nice != old.nice}


def _raise(found: list[Rank], place: int, least_nice: int | None) -> None:
    """Bring the job at a place before the next job, as far as its nice may fall."""
    job, behind = found[place], found[place + 1]
    nice = job.nice - (behind.priority + _gap(job, behind) - job.priority)
    if least_nice is not None:
        nice = max(nice, min(least_nice, job.nice))
    if nice < job.nice:
        found[place] = job.with_nice(nice)


def _gap(first: Rank, second: Rank) -> int:
    """By how much the first's priority must exceed the second's to be considered before it."""
    by_id = 0 if first.job_id < second.job_id else 1
    return by_id if first.place < second.place else by_id + _MARGIN


# -- places in the queue -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a pending job stands in the order in which Slurm considers the jobs of a partition.

    Jobs that are held are not counted: none of them can start.

    Attributes:
        rank: Its place among the pending jobs of its user there, counted from 1; 0 if it is held.
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


def place_of(jobs: Sequence[Job], job_id: str, me: str) -> QueuePlace | None:
    """A job's place among all jobs of the queue, as shown to `me`; None if it has started."""
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
    return QueuePlace(job_id, job.resource_pool, rank, len(ids), count, user)


def waiting(jobs: Iterable[Job], job_id: str) -> Job | None:
    """The pending job, or the foremost pending elements of the array; held ones come last."""
    found = [job for job in jobs if job.job_id == job_id and job.waiting]
    return min(found, key=lambda job: (job.held, job.position), default=None)


def competing(jobs: Iterable[Job], job: Job) -> list[Job]:
    """The user's pending jobs in the same partition, a job for each id, in their order."""
    found: dict[str, Job] = {}
    for other in jobs:
        same = (other.user, other.resource_pool) == (job.user, job.resource_pool)
        if same and other.waiting and not other.held and other.slurm_priority is not None:
            found.setdefault(other.job_id, other)
    return list(found.values())


def _contends(job: Job, pools: set[str]) -> bool:
    return job.waiting and not job.held and not pools.isdisjoint(job.resource_pool.split(","))


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 11th."""
    last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{last or 'th'}"
