"""The jobs that Slurm considers before another job, and their requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.slurm import JobInfo

# Jobs that wait for one of these will not take the next free resources.
_ELSEWHERE = frozenset({"held", "dependency", "quota"})
_APART = frozenset({"BeginTime", "Reservation"})


@dataclass(frozen=True, slots=True)
class UserAhead:
    """One user's jobs ahead: their number, and their slots together."""

    user: str
    jobs: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAhead:
    """The jobs that are considered earlier.

    Each element of an array counts as a job, and slots are those of all its elements.

    Attributes:
        jobs: How many wait for resources as it does.
        slots: How many slots they ask for together.
        users: Their users, the user with the most slots first.
        first: The job that is considered first; "" if there is none.
        largest: The job that asks for the most slots; "" if there is none.
        largest_user: The user of that job.
        largest_slots: How many slots that one asks for.
        not_counted: How many more have a higher priority, but wait for a limit, a time or another
            job.
    """

    jobs: int = 0
    slots: int = 0
    users: tuple[UserAhead, ...] = ()
    first: str = ""
    largest: str = ""
    largest_user: str = ""
    largest_slots: int = 0
    not_counted: int = 0


def jobs_ahead(job: JobInfo, queue: Iterable[JobInfo]) -> JobsAhead:
    """The jobs of a queue, in any order, that are considered before a job: those of its partition
    with a higher priority, and of equal ones those with a smaller id."""
    before = [other for other in queue if _is_before(other, job)]
    counted = sorted(filter(_competes, before), key=_order)
    if not counted:
        return JobsAhead(not_counted=_elements(before))
    largest = max(counted, key=lambda other: other.slots)
    return JobsAhead(
        jobs=_elements(counted),
        slots=_slots(counted),
        users=_by_user(counted),
        first=counted[0].refs[0],
        largest=largest.refs[0],
        largest_user=largest.user,
        largest_slots=largest.slots,
        not_counted=_elements(before) - _elements(counted),
    )


def _is_before(other: JobInfo, job: JobInfo) -> bool:
    if not other.waiting or other.job_id == job.job_id:
        return False
    if set(other.partitions).isdisjoint(job.partitions):
        return False
    return _order(other) < _order(job)


def _order(job: JobInfo) -> tuple[int, int]:
    return -(job.priority or 0), int(job.job_id)


def _competes(job: JobInfo) -> bool:
    reason = reason_of(job.reason)
    apart = reason.category in _ELSEWHERE or reason.code in _APART
    return not apart and not reason.permanent


def _elements(jobs: Iterable[JobInfo]) -> int:
    return sum(job.count for job in jobs)


def _slots(jobs: Iterable[JobInfo]) -> int:
    return sum(job.slots * job.count for job in jobs)


def _by_user(jobs: Iterable[JobInfo]) -> tuple[UserAhead, ...]:
    groups: dict[str, list[JobInfo]] = {}
    for job in jobs:
        groups.setdefault(job.user, []).append(job)
    found = [UserAhead(user, _elements(own), _slots(own)) for user, own in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.slots, one.user)))
