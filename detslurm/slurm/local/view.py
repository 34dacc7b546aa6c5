"""A local cluster's elements in the terms of the queue."""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from detslurm.slurm.local import policy
from detslurm.slurm.local.jobs import Element, Jobs
from detslurm.slurm.local.policy import Slots
from detslurm.slurm.queue_state import JobInfo

if TYPE_CHECKING:
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.request import JobRequest


def describe(
    jobs: Jobs, refs: Collection[str], slots: Slots | None, now: float
) -> list[dict[str, Any]]:
    """Plain data for `info` about every element that the refs name."""
    running = policy.running_counts(jobs)
    free = policy.free(jobs, slots) if slots is not None else None
    elements = {element.key: element for ref in refs for element in jobs.find(ref)}
    return [_describe(jobs, element, free, running, now) for element in elements.values()]


def _describe(
    jobs: Jobs,
    element: Element,
    free: tuple[int, tuple[str, ...]] | None,
    running: dict[int, int],
    now: float,
) -> dict[str, Any]:
    job = jobs.jobs[element.job]
    minutes = job.request.time_minutes
    left = None
    if element.state == "RUNNING" and minutes and element.started is not None:
        left = max(0, int(element.started + 60 * minutes - now))
    reason = ""
    if element.state == "PENDING":
        reason = policy.blocked(jobs, element, running)
        if not reason and free is not None and not _fits(job.request, *free):
            reason = "Resources"
    return {
        "ref": element.ref,
        "state": element.state,
        "reason": reason or ("Priority" if element.state == "PENDING" else ""),
        "partitions": ["local"],
        "nodes": [socket.gethostname()] if element.started is not None else [],
        "restarts": element.restarts,
        "time_left": left,
        "priority": -(job.request.nice or 0),
        "submitted": job.submitted,
        "exit_code": element.exit_code,
        "signal": element.signal,
    }


def _fits(request: JobRequest, cpus: int, gpus: Sequence[str]) -> bool:
    want_cpus, want_gpus = policy.needs(request)
    return want_cpus <= cpus and want_gpus <= len(gpus)


def info(data: dict[str, Any]) -> JobInfo:
    """The JobInfo of one description."""
    lists = {name: tuple(data[name]) for name in ("nodes", "partitions")}
    return JobInfo(**{**data, **lists})


def queue(jobs: Jobs, slots: Slots, user: str, now: float) -> list[JobInfo]:
    """All elements that wait or run, each in a row of its own."""

    rows = []
    for data in describe(jobs, [str(job) for job in jobs.jobs], slots, now):
        known = info(data)
        if known.final:
            continue
        element = jobs.find(known.ref)[0]
        request = jobs.request(element)
        cpus, gpus = policy.needs(request)
        rows.append(
            replace(
                known,
                throttle=request.throttle,
                name=request.name,
                user=user,
                nice=request.nice or 0,
                started=element.started,
                time_limit=60 * request.time_minutes if request.time_minutes else None,
                node_count=1,
                cpus=cpus,
                gpus=gpus,
                dependency=request.dependency or "",
                folder=str(request.folder),
                comment=request.comment or "",
            )
        )
    return rows


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
