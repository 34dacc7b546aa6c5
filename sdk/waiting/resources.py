"""Why a job waits for resources: what is ahead of it, free, away and kept. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from detslurm._quantities import counted
from detslurm.sdk.waiting.finding import SHOWN, WaitFinding, held_by
from detslurm.sdk.waiting.spans import clock, clock_and_span, span

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import JobEvidence
    from detslurm.sdk.waiting.jobs_ahead import UserAhead
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.pending_details import Priority, ReservedNodes
    from detslurm.slurm.queued_job import QueuedJob
    from detslurm.slurm.reasons import Reason

_NO_SUCH = "Kill it, and submit it again with features that exist: `sinfo -o '%f %N'` lists them."


def resources(evidence: JobEvidence, plain: WaitFinding, reason: Reason) -> WaitFinding:
    """What is missing, as exactly as the evidence shows it."""
    if missing := _missing_features(evidence):
        names, pools = " and ".join(missing), _pools(evidence.row)
        cause = f"asks for the feature {names}, which no node of {pools} has"
        return WaitFinding(cause, _NO_SUCH, True)
    lines = tuple(_licenses(evidence) if reason.code == "Licenses" else _lines(evidence))
    remedy = _before_reservation(evidence) or plain.remedy
    cause = _cause(evidence, reason) or plain.cause
    return replace(plain, cause=cause, remedy=remedy, lines=lines)


def _cause(evidence: JobEvidence, reason: Reason) -> str:
    row = evidence.row
    if reason.code == "Priority" and evidence.ahead.jobs:
        return f"has {counted(evidence.ahead.jobs, 'job')} ahead of it in {_pools(row)}"
    if reason.code == "Resources" and evidence.nodes:
        return f"needs {_needs(evidence)}, and so much is not free in {_pools(row)}"
    if reason.code == "Reservation" and row.reservation:
        return f"waits for its reservation {row.reservation}"
    if reason.code == "Licenses" and row.licenses:
        return f"waits for licenses that are in use: {row.licenses}"
    return _out_of_reach(evidence) if reason.code == "ReqNodeNotAvail" else ""


def _out_of_reach(evidence: JobEvidence) -> str:
    """Why too few of the nodes that it may have are in service."""
    wanted = _wanted_nodes(evidence)
    away = [node for node in _own_nodes(evidence) if node.name in wanted and not node.available]
    if away:
        named = ", ".join(map(_away, away[:SHOWN]))
        return f"asks for nodes that are out of service: {named}"
    nodes, needed = _own_nodes(evidence), evidence.row.node_count or 1
    there = [node for node in nodes if node.available]
    if nodes and len(there) < needed:
        have = f"{len(there)} of {counted(len(nodes), 'node')} of {_pools(evidence.row)}"
        return f"needs {counted(needed, 'node')}, and only {have} are in service"
    if any(True for _ in _reservations_in_the_way(evidence)):
        return "needs nodes that are reserved before it could end"
    return ""


def _wanted_nodes(evidence: JobEvidence) -> frozenset[str]:
    record = evidence.details.record
    return frozenset(record.wanted_nodes if record is not None else ())


def _lines(evidence: JobEvidence) -> Iterator[str]:
    yield from _inactive_features(evidence)
    yield from _ahead(evidence)
    yield from _free(evidence)
    yield from _out_of_service(evidence)
    yield from _next_to_end(evidence)
    yield from _reservations(evidence)
    yield from _priorities(evidence)


def _missing_features(evidence: JobEvidence) -> list[str]:
    """Features that no node of the job's partitions can have, of those that it can't do without."""
    return [feature for feature, nodes in _needed_features(evidence) if not nodes]


def _inactive_features(evidence: JobEvidence) -> Iterator[str]:
    """Those that nodes could have, and none has now: Slurm or the site has to change a node."""
    for feature, nodes in _needed_features(evidence):
        if nodes and not any(feature in node.features for node in nodes):
            names = ", ".join(node.name for node in nodes[:SHOWN])
            more = f" and {len(nodes) - SHOWN} more" * (len(nodes) > SHOWN)
            where = f"no node of {_pools(evidence.row)} has the feature {feature} active now"
            yield f"{where}; {names}{more} can have it"


def _needed_features(evidence: JobEvidence) -> Iterator[tuple[str, list[NodeInfo]]]:
    """The features that the job can't do without, and which of its nodes have or can have each."""
    wanted = evidence.row.features
    mine = _own_nodes(evidence)
    # Only plain lists are judged: `a|b`, `[rack1|rack2]` and counts have more than one reading.
    if not wanted or not mine or re.search(r"[^\w&,.+-]", wanted):
        return
    for word in filter(None, re.split(r"[&,]", wanted)):
        yield word, [n for n in mine if word in {*n.features, *n.available_features}]


def _ahead(evidence: JobEvidence) -> Iterator[str]:
    ahead = evidence.ahead
    if ahead.jobs:
        users = [_of_user(one) for one in ahead.users[:SHOWN]]
        more = f" and those of {len(ahead.users) - SHOWN} more users" * (len(ahead.users) > SHOWN)
        whole = f", {counted(ahead.slots, 'slot')} in all" if len(users) > 1 else ""
        yield f"ahead of it: {', '.join(users)}{more}{whole}"
    if ahead.jobs > 1:
        largest = f"{ahead.largest} of {ahead.largest_user or 'unknown'}"
        yield f"the largest of them is {largest}, for {counted(ahead.largest_slots, 'slot')}"
    if ahead.not_counted:
        count = counted(ahead.not_counted, "job")
        yield f"not counted: {count} of higher priority that can't start now either"


def _of_user(one: UserAhead) -> str:
    return f"{counted(one.jobs, 'job')} of {one.user or 'unknown'} ({counted(one.slots, 'slot')})"


def _free(evidence: JobEvidence) -> Iterator[str]:
    nodes, row = _own_nodes(evidence), evidence.row
    if not nodes:
        return
    unit = "GPU" if row.gpus else "CPU"
    free = sum(free_slots(node, row) for node in nodes)
    total = sum(node.gpus if row.gpus else node.cpus for node in nodes)
    text = f"{free} of {counted(total, unit)} in {_pools(row)} {'is' if free == 1 else 'are'} free"
    yield f"{text}; it needs {_needs(evidence)}"
    enough, count = [node for node in nodes if _fits(node, evidence)], row.node_count or 1
    if free >= _each(row) * count and len(enough) < count:
        room = f"only {len(enough)} of {counted(len(nodes), 'node')}" if enough else "no node"
        yield f"{room} could take its part now"


def _fits(node: NodeInfo, evidence: JobEvidence) -> bool:
    """Whether a node has what the job needs of each of its nodes."""
    row = evidence.row
    if evidence.exclusive and node.cpus_used:
        return False
    return free_slots(node, row) >= _each(row) and _has_memory(node, row)


def _out_of_service(evidence: JobEvidence) -> Iterator[str]:
    nodes = _own_nodes(evidence)
    away = [node for node in nodes if not node.available]
    if not away:
        return
    named = [_away(node) for node in away[:SHOWN]]
    more = f" and {len(away) - SHOWN} more" if len(away) > SHOWN else ""
    yield f"{len(away)} of {counted(len(nodes), 'node')} out of service: {', '.join(named)}{more}"


def _away(node: NodeInfo) -> str:
    why = f": {node.reason}" if node.reason else ""
    return f"{node.name} ({node.state.lower()}{why})"


def _next_to_end(evidence: JobEvidence) -> Iterator[str]:
    pools = set(evidence.row.partitions)
    limited = [
        job
        for job in evidence.queue
        if job.running and job.time_left is not None and not pools.isdisjoint(job.partitions)
    ]
    if limited:
        first = min(limited, key=lambda job: job.time_left or 0)
        # The queue's answer may be a minute old, and counts from then.
        end = clock_and_span(evidence.as_of + (first.time_left or 0), evidence.now)
        slots = counted(first.slots, "slot")
        yield f"the first to reach its time limit is {first.ref} of {first.user}, {slots}: {end}"


def _reservations(evidence: JobEvidence) -> Iterator[str]:
    for one in evidence.details.reservations:
        if one.name == evidence.row.reservation:
            yield f"its reservation {one.name} begins {_when(one.start, evidence.now)}"
    for one in _reservations_in_the_way(evidence):
        yield _kept(one, evidence.now)


def _reservations_in_the_way(evidence: JobEvidence) -> Iterator[ReservedNodes]:
    """Those of others on its nodes that begin before it could end."""
    names = _wanted_nodes(evidence) or {node.name for node in _own_nodes(evidence)}
    row, now = evidence.row, evidence.now
    for one in evidence.details.reservations:
        over = one.end is not None and one.end < now
        later = None not in (one.start, row.time_limit) and (one.start or 0) > now + (
            row.time_limit or 0
        )
        if one.name != row.reservation and names & set(one.nodes) and not over and not later:
            yield one


def _before_reservation(evidence: JobEvidence) -> str:
    """The time limit that would end before the first of them begins."""
    starts = [
        (one.start, one.name)
        for one in _reservations_in_the_way(evidence)
        if one.start is not None and one.start > evidence.now + 60
    ]
    if not starts:
        return ""
    start, name = min(starts)
    left = span(start - evidence.now)
    return f"A time limit of less than {left} ends before reservation {name} begins."


def _kept(one: ReservedNodes, now: float) -> str:
    who = "maintenance" if one.maintenance else one.users or one.accounts or "others"
    until = f" until {clock(one.end, now)}" if one.end else ""
    nodes = counted(len(one.nodes), "node")
    return f"reservation {one.name} keeps {nodes} for {who} from {_when(one.start, now)}{until}"


def _when(moment: float | None, now: float) -> str:
    return "at a time that is not known" if moment is None else clock_and_span(moment, now)


def _priorities(evidence: JobEvidence) -> Iterator[str]:
    own_id = evidence.row.job_id
    found = {one.ref: one for one in evidence.details.priorities}
    if own := found.pop(own_id, None):
        yield f"its priority is {_parts(own)}"
        for other in found.values():
            yield f"that of {other.ref}, which is ahead, is {_parts(other)}"


def _parts(priority: Priority) -> str:
    parts = [f"{name} {value}" for name, value in priority.factors.items()]
    if priority.nice:
        parts.append(f"nice -{priority.nice}")
    return f"{priority.total} ({', '.join(parts)})" if parts else str(priority.total)


def _licenses(evidence: JobEvidence) -> Iterator[str]:
    wanted = {item.partition(":")[0] for item in re.split(r"[,|]", evidence.row.licenses)}
    for one in evidence.details.licenses:
        if one.name in wanted:
            yield f"license {one.name}: {one.used} of {one.total} in use"
    holders = [
        job
        for job in evidence.queue
        if job.running and wanted & set(re.split(r"[,|:]", job.licenses))
    ]
    yield from held_by(holders)


def _own_nodes(evidence: JobEvidence) -> list[NodeInfo]:
    pools = set(evidence.row.partitions)
    return [node for node in evidence.nodes if not pools.isdisjoint(node.partitions)]


def free_slots(node: NodeInfo, row: QueuedJob) -> int:
    """What of a node such a job could use now."""
    if not node.available:
        return 0
    return node.gpus - node.gpus_used if row.gpus else node.cpus - node.cpus_used


def _has_memory(node: NodeInfo, row: QueuedJob) -> bool:
    if row.memory is None or node.memory is None or node.memory_used is None:
        return True
    return node.memory - node.memory_used >= row.memory / (row.node_count or 1)


def _each(row: QueuedJob) -> int:
    """The slots that it needs on each of its nodes, at least."""
    return -(-row.slots // (row.node_count or 1))


def _needs(evidence: JobEvidence) -> str:
    row = evidence.row
    nodes = row.node_count or 1
    if evidence.exclusive:
        gpus = f" with {counted(row.gpus, 'GPU')}" if row.gpus else ""
        return f"{nodes} whole {'node' if nodes == 1 else 'nodes'}{gpus}"
    what = counted(row.gpus, "GPU") if row.gpus else counted(row.cpus, "CPU")
    return f"{what} on {counted(nodes, 'node')}"


def _pools(row: QueuedJob) -> str:
    names = row.partitions or ("its partition",)
    return f"partition {names[0]}" if len(names) == 1 else f"partitions {', '.join(names)}"
