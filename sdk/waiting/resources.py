"""Why a job waits for resources: jobs ahead, and nodes free, out of service, reserved. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from detslurm._base.quantities import counted
from detslurm.sdk.waiting.spans import clock, clock_and_span

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import Evidence
    from detslurm.slurm import JobInfo, NodeInfo
    from detslurm.slurm.pending_details import Priority, ReservedNodes

SHOWN: Final = 3  # of each kind of thing are named


def resource_cause(evidence: Evidence, code: str) -> str:
    """The cause as exactly as the evidence shows it; empty if that adds nothing to the reason."""
    row = evidence.row
    if code == "Priority" and evidence.ahead:
        return f"has {counted(_jobs_ahead(evidence), 'job')} ahead of it in {_pools(row)}"
    if code == "Resources" and evidence.nodes:
        return f"needs {_needs(evidence)}, and so much is not free in {_pools(row)}"
    if code == "Reservation" and row.reservation:
        return f"waits for its reservation {row.reservation}"
    if code == "ReqNodeNotAvail" and _in_the_way(evidence):
        return "needs nodes that are reserved before it could end"
    return ""


def resource_lines(evidence: Evidence) -> Iterator[str]:
    """All that the evidence shows, a line each."""
    yield from _ahead(evidence)
    yield from _free(evidence)
    yield from _out_of_service(evidence)
    yield from _next_to_end(evidence)
    yield from _reservations(evidence)
    yield from _priorities(evidence)


def _ahead(evidence: Evidence) -> Iterator[str]:
    users = evidence.users_ahead
    if users:
        named = [
            f"{counted(user.jobs, 'job')} of {user.user or 'unknown'} ({_slots(user.slots)})"
            for user in users
        ]
        whole = f", {_slots(sum(u.slots for u in users))} in all" if len(users) > 1 else ""
        yield f"ahead of it: {first_of(named, 'users')}{whole}"
    if _jobs_ahead(evidence) > 1:
        largest = max(evidence.ahead, key=lambda job: job.slots)
        whose = f"{largest.refs[0]} of {largest.user or 'unknown'}"
        yield f"the largest of them is {whose}, for {_slots(largest.slots)}"
    if evidence.not_counted:
        count = counted(evidence.not_counted, "job")
        yield f"not counted: {count} of higher priority that can't start now either"


def _jobs_ahead(evidence: Evidence) -> int:
    return sum(job.count for job in evidence.ahead)


def _slots(count: int) -> str:
    return counted(count, "slot")


def first_of(names: Sequence[str], things: str) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more {things}" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _free(evidence: Evidence) -> Iterator[str]:
    nodes, row = _own_nodes(evidence), evidence.row
    if nodes:
        free = sum(free_slots(node, row) for node in nodes)
        total = sum(node.gpus if row.gpus else node.cpus for node in nodes)
        of = f"{free} of {counted(total, 'GPU' if row.gpus else 'CPU')} in {_pools(row)}"
        yield f"{of} {'is' if free == 1 else 'are'} free; it needs {_needs(evidence)}"


def _out_of_service(evidence: Evidence) -> Iterator[str]:
    nodes = _own_nodes(evidence)
    away = [
        f"{node.name} ({node.state.lower()}{f': {node.reason}' if node.reason else ''})"
        for node in nodes
        if not node.available
    ]
    if away:
        count = f"{len(away)} of {counted(len(nodes), 'node')}"
        yield f"{count} out of service: {first_of(away, 'nodes')}"


def _next_to_end(evidence: Evidence) -> Iterator[str]:
    pools = set(evidence.row.partitions)
    limited = [
        (job.time_left, job.ref, job)
        for job in evidence.queue
        if job.running and job.time_left is not None and not pools.isdisjoint(job.partitions)
    ]
    if limited:
        left, ref, job = min(limited, key=lambda end: end[:2])
        # The queue's answer may be a minute old, and counts from then.
        end = clock_and_span(evidence.as_of + left, evidence.now)
        whose = f"{ref} of {job.user}, {_slots(job.slots)}"
        yield f"the first to reach its time limit is {whose}: {end}"


def _reservations(evidence: Evidence) -> Iterator[str]:
    now = evidence.now
    for kept in evidence.details.reservations:
        if kept.name == evidence.row.reservation:
            yield f"its reservation {kept.name} begins {clock_and_span(kept.start, now)}"
    for kept in _in_the_way(evidence):
        nodes = f"{counted(len(kept.nodes), 'node')} for {kept.users or 'others'}"
        times = f"from {clock_and_span(kept.start, now)} until {clock(kept.end, now)}"
        yield f"reservation {kept.name} keeps {nodes} {times}"


def _in_the_way(evidence: Evidence) -> list[ReservedNodes]:
    """The reservations of others on its nodes that begin before it could end."""
    row, now = evidence.row, evidence.now
    names = {node.name for node in _own_nodes(evidence)}
    return [
        kept
        for kept in evidence.details.reservations
        if kept.name != row.reservation and not names.isdisjoint(kept.nodes)
        if kept.end > now
        if row.time_limit is None or kept.start <= now + row.time_limit
    ]


def _priorities(evidence: Evidence) -> Iterator[str]:
    found = {priority.ref: priority for priority in evidence.details.priorities}
    if own := found.pop(evidence.row.job_id, None):
        yield f"its priority is {_parts(own)}"
        for other in found.values():
            yield f"that of {other.ref}, which is ahead, is {_parts(other)}"


def _parts(priority: Priority) -> str:
    parts = ", ".join(f"{name} {value}" for name, value in priority.factors.items())
    return f"{priority.total} ({parts})" if parts else str(priority.total)


def _own_nodes(evidence: Evidence) -> list[NodeInfo]:
    pools = set(evidence.row.partitions)
    return [node for node in evidence.nodes if not pools.isdisjoint(node.partitions)]


def free_slots(node: NodeInfo, row: JobInfo) -> int:
    """The resources of a node that such a job could use now."""
    if not node.available:
        return 0
    return node.gpus - node.gpus_used if row.gpus else node.cpus - node.cpus_used


def _needs(evidence: Evidence) -> str:
    row = evidence.row
    nodes = row.node_count or 1
    if "--exclusive" in evidence.details.options:
        gpus = f" with {counted(row.gpus, 'GPU')}" if row.gpus else ""
        return f"{nodes} whole {'node' if nodes == 1 else 'nodes'}{gpus}"
    slots = counted(row.gpus, "GPU") if row.gpus else counted(row.cpus, "CPU")
    return f"{slots} on {counted(nodes, 'node')}"


def _pools(row: JobInfo) -> str:
    names = ", ".join(row.partitions)
    return f"partition{'s' * (len(row.partitions) > 1)} {names}" if names else "its partition"
