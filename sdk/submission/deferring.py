"""Splits an experiment into jobs of now and those that its jobs submit (`exec.deferred`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from detslurm.sdk.errors import SubmitError
from detslurm.slurm import Allowance, ClusterLimits, JobPlan, first_elements
from detslurm.store import ExperimentDir, records


@dataclass(frozen=True)
class Deferral:
    """How many elements of the arrays are submitted later, and which limit is the reason."""

    elements: int
    allowed: Allowance


def within_quotas(
    jobs: JobPlan, allowed: Allowance, limits: ClusterLimits, *, is_search: bool
) -> tuple[JobPlan, Deferral | None, str | None]:
    """The jobs that may be submitted now, the rest, and a message for the user. A search with fewer
    workers has no rest. Raises `SubmitError` where there is no room at all."""
    elements = sum(array.count for array in jobs.arrays)
    allowed = _within_job_count(allowed, elements, limits)
    if allowed.room is None or elements + is_search <= allowed.room or not elements:
        return jobs, None, None
    if allowed.room == 0:
        raise SubmitError(no_room(allowed.limit))
    sent = max(1, allowed.room - is_search)
    note = (
        f"{sent} of {elements} jobs are submitted now (limit {allowed.limit}): these go on with the"
        " other trials, and submit more where there is room"
    )
    if is_search:
        note = f"the search begins with {sent} of {elements} workers (limit {allowed.limit})"
    deferral = None if is_search else Deferral(elements - sent, allowed)
    return replace(jobs, arrays=first_elements(jobs.arrays, sent)), deferral, note


def no_room(limit: str) -> str:
    """That nothing can be submitted now, and what to do."""
    name = f"limit {limit}, " if limit else ""
    return (
        f"there is no room for another job of yours in the queue ({name}where each element of an"
        " array is one): wait until some end; `squeue --me` lists them"
    )


def _within_job_count(allowed: Allowance, elements: int, limits: ClusterLimits) -> Allowance:
    """Where the whole cluster's queue could never hold the jobs, half of it is enough."""
    most = limits.max_job_count
    room = most // 2 if allowed.room is None else min(allowed.room, most // 2)
    if elements <= most or room == allowed.room:
        return allowed
    return replace(allowed, room=room, limit=f"MaxJobCount={most} of the cluster")


def defer(experiment: ExperimentDir, trials: range, each: int, allowed: Allowance) -> None:
    """Record that these trials (by index) are submitted later."""
    charge = asdict(allowed.charge) if allowed.charge is not None else None
    if trials:
        experiment.append(
            records.Deferred(
                first_index=trials.start,
                count=len(trials),
                each=each,
                limit=allowed.limit,
                charge=charge,
            )
        )
