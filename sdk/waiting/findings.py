"""What the evidence says about a wait, kind by kind. Pure: nothing is asked, nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from detslurm._quantities import counted
from detslurm.sdk.waiting.finding import SHOWN, WaitFinding
from detslurm.sdk.waiting.limits import limited
from detslurm.sdk.waiting.resources import resources
from detslurm.sdk.waiting.spans import clock_and_span, span
from detslurm.slurm.reasons import limit_of, reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import JobEvidence


def finding(evidence: JobEvidence) -> WaitFinding:
    """Why the job waits: Slurm's reason, made exact by the evidence where there is some."""
    reason = reason_of(evidence.row.reason)
    plain = WaitFinding(
        reason.sentence, reason.remedy.format(ref=evidence.row.ref), reason.permanent
    )
    if limit := limit_of(reason.code):
        return limited(evidence, plain, limit)
    if reason.category == "resources" and not reason.code.startswith("Partition"):
        return resources(evidence, plain, reason)
    if reason.category == "dependency":
        return replace(plain, lines=tuple(_dependencies(evidence)))
    if reason.category == "held":
        return _held(evidence, plain)
    if reason.code == "JobArrayTaskLimit":
        return _own_throttle(evidence, plain)
    if reason.code == "BeginTime":
        return _begin_time(evidence, plain)
    return replace(plain, lines=tuple(_partition_rules(evidence)))


def _own_throttle(evidence: JobEvidence, plain: WaitFinding) -> WaitFinding:
    row, number = evidence.row, evidence.job.experiment_id
    same = [job for job in evidence.queue if job.job_id == row.job_id]
    running = sum(job.count for job in same if job.running)
    most = next((job.throttle for job in same if job.throttle), None)
    limit = "" if most is None else f": {running} of {most} run"
    if number is None:
        cause = f"waits for its own array's limit of elements that run at once{limit}"
        remedy = f"`scontrol update JobId={row.job_id} ArrayTaskThrottle=N` changes it."
        return replace(plain, cause=cause, remedy=remedy)
    cause = f"waits for its own experiment's limit of trials that run at once{limit}"
    remedy = (
        "searcher.max_concurrent_trials and resources.max_slots set it; `detslurm experiment set"
        f" max-slots {number} N` changes it now."
    )
    return replace(plain, cause=cause, remedy=remedy)


def _held(evidence: JobEvidence, plain: WaitFinding) -> WaitFinding:
    record, number = evidence.details.record, evidence.job.experiment_id
    lines: tuple[str, ...] = ()
    if record is not None and record.restarts:
        lines = (f"Slurm has restarted it {counted(record.restarts, 'time')}",)
    code = reason_of(evidence.row.reason).code
    if number is None or code == "JobHeldAdmin":
        return replace(plain, lines=lines)
    remedy = f"Let it go on with `detslurm experiment activate {number}`."
    why = evidence.job.pause_reason if code in _PAUSED else None
    if why is None:
        return replace(plain, remedy=remedy, lines=lines)
    if "budget" in why:
        remedy = f"Raise it with `detslurm experiment set budget {number} N`. Then l{remedy[1:]}"
    cause = f"is held, for its experiment was paused by its own jobs: {why}"
    return replace(plain, cause=cause, remedy=remedy, lines=lines)


# What Slurm says of the jobs of an experiment that is paused.
_PAUSED = ("JobHeldUser", "job requeued in held state")


def _dependencies(evidence: JobEvidence) -> Iterator[str]:
    queued = {ref: job for job in evidence.queue for ref in (*job.refs, job.job_id)}
    yield (
        f"its condition is {evidence.row.dependency}"
        if evidence.row.dependency
        else ("Slurm does not show its condition")
    )
    for one in evidence.details.dependencies[:SHOWN]:
        here = queued.get(one.ref)
        if one.final:
            yield f"job {one.ref} ended: {one.state}"
        elif one.waiting:
            yield f"job {one.ref} waits itself: it {reason_of(one.reason).sentence}"
        else:
            left = here.time_left if here is not None else one.time_left
            end = "" if left is None else f", for {span(left)} at the most"
            yield f"job {one.ref} runs{end}"


def _begin_time(evidence: JobEvidence, plain: WaitFinding) -> WaitFinding:
    record, now = evidence.details.record, evidence.now
    begin = evidence.row.expected_start or (record and (record.eligible or record.expected_start))
    if not begin:
        return plain
    lines: tuple[str, ...] = ()
    if record is not None and record.restarts:
        lines = ("it was put back into the queue: Slurm lets such a job wait a little",)
    cause = f"may not begin before {clock_and_span(begin, now)}"
    return replace(plain, cause=cause, lines=lines)


def _partition_rules(evidence: JobEvidence) -> Iterator[str]:
    rules, row = evidence.details.partition, evidence.row
    if rules is None:
        return
    yield f"partition {rules.name} is {rules.state}"
    if rules.max_seconds is not None and row.time_limit is not None:
        yield f"it grants {span(rules.max_seconds)}, and the job asks for {span(row.time_limit)}"
    if rules.max_nodes is not None:
        yield f"it grants {counted(rules.max_nodes, 'node')}; the job asks for {row.node_count}"
    for what, names in rules.allowed.items():
        yield f"it is for the {what} {names} alone"
