"""A local cluster's elements in the terms of the queue."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any

from detslurm.slurm.interface import JobInfo
from detslurm.slurm.local import policy
from detslurm.slurm.local.jobs import Element, Jobs
from detslurm.slurm.local.policy import Slots


def describe(
    jobs: Jobs, refs: Collection[str], slots: Slots | None, now: float
) -> list[dict[str, Any]]:
    """Plain data for `info` about every element that the refs name."""
    running = policy.running_counts(jobs)
    elements = {element.key: element for ref in refs for element in jobs.find(ref)}
    return [_describe(jobs, element, slots, running, now) for element in elements.values()]


def _describe(
    jobs: Jobs, element: Element, slots: Slots | None, running: dict[int, int], now: float
) -> dict[str, Any]:
    job = jobs.jobs[element.job]
    minutes = job.request.time_minutes
    left = None
    if element.state == "RUNNING" and minutes and element.started is not None:
        left = max(0, int(element.started + 60 * minutes - now))
    reason = ""
    if element.state == "PENDING":
        reason = policy.blocked(jobs, element, running)
        if not reason and slots is not None and not _fits(jobs, element, slots):
            reason = "Resources"
    return {
        "ref": element.ref,
        "state": element.state,
        "reason": reason or ("Priority" if element.state == "PENDING" else ""),
        "partition": "local",
        "nodes": [socket.gethostname()] if element.started is not None else [],
        "restarts": element.restarts,
        "time_left": left,
        "priority": -(job.request.nice or 0),
        "submitted": job.submitted,
        "exit_code": element.exit_code,
        "signal": element.signal,
    }


def _fits(jobs: Jobs, element: Element, slots: Slots) -> bool:
    cpus, gpus = policy.free(jobs, slots)
    want_cpus, want_gpus = policy.needs(jobs.request(element))
    return want_cpus <= cpus and want_gpus <= len(gpus)


def info(data: dict[str, Any]) -> JobInfo:
    """The JobInfo of one description."""
    return JobInfo(**{**data, "nodes": tuple(data["nodes"])})
