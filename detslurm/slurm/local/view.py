"""A local cluster's elements in the terms of the queue."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from detslurm._base.access import user_name
from detslurm.slurm.local import policy
from detslurm.slurm.local.jobs import Element, Jobs
from detslurm.slurm.local.policy import Slots
from detslurm.slurm.queue_state import JobInfo

if TYPE_CHECKING:
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.request import JobRequest


def describe(jobs: Jobs, refs: Collection[str], slots: Slots | None, now: float) -> list[JobInfo]:
    """Every element that the refs name, each in a row of its own; `slots` is None where none of
    them waits for any."""
    running = policy.running_counts(jobs)
    free, user = policy.free(jobs, slots or Slots(0)), user_name()
    elements = {element.key: element for ref in refs for element in jobs.find(ref)}
    return [_describe(jobs, element, free, running, user, now) for element in elements.values()]


def _describe(
    jobs: Jobs,
    element: Element,
    free: tuple[int, tuple[str, ...]],
    running: dict[int, int],
    user: str,
    now: float,
) -> JobInfo:
    request, minutes = jobs.request(element), jobs.request(element).time_minutes
    left = None
    if element.state == "RUNNING" and minutes and element.started is not None:
        left = max(0, int(element.started + 60 * minutes - now))
    reason = ""
    if element.state == "PENDING":
        busy = "Priority" if _fits(request, *free) else "Resources"
        reason = policy.blocked(jobs, element, running) or busy
    cpus, gpus = policy.needs(request)
    return JobInfo(
        ref=element.ref,
        state=element.state,
        reason=reason,
        throttle=request.throttle,
        name=request.name,
        user=user,
        partitions=("local",),
        priority=-(request.nice or 0),
        nice=request.nice or 0,
        submitted=jobs.jobs[element.job].submitted,
        started=element.started,
        time_limit=60 * minutes if minutes else None,
        time_left=left,
        node_count=1,
        nodes=(socket.gethostname(),) if element.started is not None else (),
        cpus=cpus,
        gpus=gpus,
        dependency=request.dependency or "",
        folder=str(request.folder),
        comment=request.comment or "",
        restarts=element.restarts,
        exit_code=element.exit_code,
        signal=element.signal,
    )


def _fits(request: JobRequest, cpus: int, gpus: Sequence[str]) -> bool:
    want_cpus, want_gpus = policy.needs(request)
    return want_cpus <= cpus and want_gpus <= len(gpus)


def node(jobs: Jobs, slots: Slots) -> NodeInfo:
    """This machine."""
    from detslurm.slurm.node_info import NodeInfo

    cpus, gpus = policy.free(jobs, slots)
    nothing = cpus == slots.cpus and gpus == slots.gpus
    full = cpus <= 0 and not gpus
    return NodeInfo(
        name=socket.gethostname(),
        state="IDLE" if nothing else "ALLOCATED" if full else "MIXED",
        partitions=("local",),
        cpus=slots.cpus,
        cpus_used=slots.cpus - cpus,
        gpus=len(slots.gpus),
        gpus_used=len(slots.gpus) - len(gpus),
        gpus_in_use=tuple(n for n, name in enumerate(slots.gpus) if name not in gpus),
    )
