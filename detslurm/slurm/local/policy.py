"""Chooses elements of a local cluster to start: a pure function of its state and its slots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from detslurm._base.quantities import counted
from detslurm.slurm.local.jobs import Element, Jobs
from detslurm.slurm.request import JobRequest


@dataclass(frozen=True, slots=True)
class Slots:
    """The machine's resources."""

    cpus: int
    gpus: tuple[str, ...] = ()


def needs(request: JobRequest) -> tuple[int, int]:
    """(CPUs, GPUs) of one element. A GPU job is counted by its GPUs alone."""
    if request.slot_type == "cpu" or request.slots == 0:
        return max(1, request.slots), 0
    return 0, request.slots


def startable(jobs: Jobs, slots: Slots) -> list[tuple[Element, tuple[str, ...]]]:
    """The elements to start now, in order, each with its GPUs."""
    cpus, gpus = free(jobs, slots)
    chosen: list[tuple[Element, tuple[str, ...]]] = []
    running = running_counts(jobs)
    for element in queue(jobs):
        request = jobs.request(element)
        if blocked(jobs, element, running):
            continue
        want_cpus, want_gpus = needs(request)
        if want_cpus > cpus or want_gpus > len(gpus):
            # First come, first served: what it waits for is kept, so that nothing starves.
            cpus, gpus = (0, gpus) if want_cpus else (cpus, ())
            continue
        cpus -= want_cpus
        given, gpus = gpus[:want_gpus], gpus[want_gpus:]
        running[element.job] = running.get(element.job, 0) + 1
        chosen.append((element, given))
    return chosen


def queue(jobs: Jobs) -> list[Element]:
    """Waiting elements in the order in which they should start."""
    waiting = [element for element in jobs if element.state == "PENDING" and not element.held]
    return sorted(waiting, key=lambda e: (jobs.request(e).nice or 0, e.job, e.index or 0))


def free(jobs: Jobs, slots: Slots) -> tuple[int, tuple[str, ...]]:
    """CPUs and GPUs that no running element has."""
    running = [element for element in jobs if element.state == "RUNNING"]
    taken = {gpu for element in running for gpu in element.gpus}
    cpus = slots.cpus - sum(needs(jobs.request(element))[0] for element in running)
    return cpus, tuple(gpu for gpu in slots.gpus if gpu not in taken)


def running_counts(jobs: Jobs) -> dict[int, int]:
    """Job id -> how many of its elements run."""
    counts: dict[int, int] = {}
    for element in jobs:
        if element.state == "RUNNING":
            counts[element.job] = counts.get(element.job, 0) + 1
    return counts


def blocked(jobs: Jobs, element: Element, running: dict[int, int]) -> str:
    """Slurm's reason why this element must wait, apart from slots; empty when it need not."""
    request = jobs.request(element)
    if element.held:
        return "JobHeldUser"
    if request.throttle and running.get(element.job, 0) >= request.throttle:
        return "JobArrayTaskLimit"
    if request.dependency and not _satisfied(jobs, request.dependency):
        return "Dependency"
    return ""


def parse_dependency(text: str) -> list[tuple[str, str]]:
    """[("afterany", "12")] of `afterany:12,afterok:13_4`; ValueError for an unsupported form."""
    parsed: list[tuple[str, str]] = []
    for item in text.split(","):
        match = re.fullmatch(r"(afterany|afterok|afternotok)((?::\d+(?:_\d+)?)+)", item.strip())
        if not match:
            raise ValueError(f"dependency {item.strip()!r} is not supported by the local cluster")
        parsed += [(match[1], ref) for ref in match[2].split(":")[1:]]
    return parsed


def _satisfied(jobs: Jobs, dependency: str) -> bool:
    for kind, ref in parse_dependency(dependency):
        elements = jobs.find(ref)
        if not all(element.over for element in elements):
            return False
        fine = all(element.state == "COMPLETED" for element in elements)
        if (kind == "afterok" and not fine) or (kind == "afternotok" and fine):
            return False
    return True


def unfit(request: JobRequest, slots: Slots) -> str:
    """Why this machine can never run the request; empty when it can."""
    cpus, gpus = needs(request)
    if request.nodes > 1:
        return f"the job wants {request.nodes} nodes and the local cluster is one machine"
    if gpus > len(slots.gpus):
        return f"the job wants {counted(gpus, 'GPU')} and this machine has {len(slots.gpus)}"
    if cpus > slots.cpus:
        return f"the job wants {counted(cpus, 'CPU')} and this machine has {slots.cpus}"
    if request.dependency:
        try:
            parse_dependency(request.dependency)
        except ValueError as error:
            return str(error)
    return ""
