"""What the queue's word means for a trial. Pure: no disk, no cluster, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from detslurm.slurm import JobInfo
from detslurm.slurm.interface import LAUNCH_FAILED
from detslurm.store import Job


class Place(NamedTuple):
    """Where a trial's newest job is: which cluster, and what to call it there."""

    cluster: str
    ref: str

    @property
    def job_id(self) -> str:
        """The job or array that the ref belongs to."""
        return self.ref.partition("_")[0]


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a trial's job: `alive` is None where nobody can tell."""

    place: Place | None
    job: JobInfo | None = None
    alive: bool | None = None
    remark: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the job stands in the queue."""
        return self.job is not None and self.job.waiting


class Sight(NamedTuple):
    """One look at the queues: jobs by place, and the clusters that did not answer."""

    jobs: Mapping[Place, JobInfo]
    silent: frozenset[str] = frozenset()


def places(jobs: Iterable[Job]) -> dict[int, Place]:
    """Trial index -> place of the newest job that works for it."""
    found: dict[int, Place] = {}
    for job in jobs:
        refs = job.refs
        for offset in range(job.count):
            found[job.first_index + offset] = Place(job.cluster, refs[offset // job.each])
    return found


def judge(place: Place | None, sight: Sight, *, paused: bool = False) -> Standing:
    """Whether a trial's job is alive, and what is worth saying of it."""
    if place is None:
        return Standing(None, remark="no job was ever submitted for it")
    job = sight.jobs.get(place)
    if job is not None and job.final:
        return Standing(place, job, False, f"job {place.ref} ended: {described_end(job)}")
    if job is not None:
        return Standing(place, job, True, _waiting(job, paused=paused))
    if place.cluster in sight.silent:
        return Standing(place)
    if place.cluster == "local":
        text = f"job {place.ref} is not known on this machine: it was submitted on another one"
        return Standing(place, remark=text)
    text = f"job {place.ref} is not in the queue, and nobody remembers how it ended"
    return Standing(place, remark=text)


def described_end(job: JobInfo) -> str:
    """How a job ended, for people."""
    if job.signal:
        return f"{job.state}, signal {job.signal}"
    return f"{job.state}, exit code {job.exit_code}" if job.exit_code else job.state


def _waiting(job: JobInfo, *, paused: bool) -> str | None:
    if not job.waiting:
        return None
    if job.held and paused:
        return None
    if LAUNCH_FAILED in job.reasons:
        return (
            f"job {job.ref} is held in the queue: Slurm could not start it, again and again"
            f" ({LAUNCH_FAILED}); the logs of its nodes' slurmd tell why"
        )
    if job.held:
        return f"job {job.ref} is held in the queue ({job.reason or job.state})"
    return f"job {job.ref} waits in the queue ({job.reason or job.state})"
