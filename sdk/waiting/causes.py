"""Why a job waits, kind by kind. Pure: nothing is asked, nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from detslurm.sdk.waiting.resources import SHOWN, first_of, resource_cause, resource_lines
from detslurm.sdk.waiting.spans import clock_and_span, span
from detslurm.slurm.reasons import Limit, reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import Evidence
    from detslurm.sdk.waiting.explanation import Explanation
    from detslurm.slurm import JobInfo
    from detslurm.slurm.pending_details import QuotaLimit

_TOO_MUCH = "Kill it, and submit it again with less, or with another QOS or account."
# Slurm's reasons for jobs of an experiment that is paused.
_PAUSED = ("JobHeldUser", "job requeued in held state")
_WHOSE = {"user": " for a user", "account": " for an account"}


def made_exact(plain: Explanation, evidence: Evidence) -> Explanation:
    """An explanation by Slurm's reason alone, made exact by the evidence where there is some."""
    row = evidence.row
    reason = reason_of(row.reason)
    if reason.limit:
        return _limited(plain, evidence, reason.limit)
    if reason.for_nodes:
        cause = resource_cause(evidence, reason.code) or plain.cause
        return replace(plain, cause=cause, evidence=tuple(resource_lines(evidence)))
    if reason.category == "held":
        return _held(plain, evidence, reason.code)
    if reason.code == "JobArrayTaskLimit":
        return _own_throttle(plain, evidence)
    if reason.code == "BeginTime" and row.expected_start:
        cause = f"may not begin before {clock_and_span(row.expected_start, evidence.now)}"
        return replace(plain, cause=cause)
    if reason.category == "dependency":
        return replace(plain, evidence=tuple(_dependencies(evidence)))
    return plain


def _limited(plain: Explanation, evidence: Evidence, limit: Limit) -> Explanation:
    """The limit of a QOS or account, and the jobs that use it up."""
    row, known = evidence.row, evidence.details.limits
    needs = {"gres/gpu": row.gpus, "cpu": row.cpus, "mem": row.memory, "node": row.node_count}
    # None where it is unknown, as of whole nodes.
    need = 1 if limit.counted in ("jobs", "submitted") else needs.get(limit.counted) or None
    # Several limits may count, and the reason does not name the exhausted limit.
    short = [quota for quota in known if need is None or quota.room < need] or known
    lines = [_bound(quota, limit.words, need) for quota in short]
    if not limit.of_each_job and not limit.spent:
        lines += _holders(_under_same_limit(evidence, limit))
    found = replace(plain, evidence=tuple(lines))
    if len(short) != 1 or limit.minimum:
        return found
    quota, whose = short[0], _holder(short[0])
    if need is not None and need > quota.most:
        cause = f"asks for {need} {limit.words}, and {whose} grants {quota.most}"
        return replace(found, cause=cause, remedy=_TOO_MUCH, permanent=True)
    used = "" if quota.used is None else f" ({quota.used} of {quota.most} {limit.words} in use)"
    return replace(found, cause=f"waits for a limit of {whose}{used}")


def _bound(quota: QuotaLimit, words: str, need: int | None) -> str:
    used = "" if quota.used is None else f", {quota.used} in use"
    more = "" if need is None else f"; the job needs {need}"
    return f"{_holder(quota)}: at most {quota.most} {words}{used}{more}"


def _holder(quota: QuotaLimit) -> str:
    return quota.holder + _WHOSE.get(quota.scope, "")


def _under_same_limit(evidence: Evidence, limit: Limit) -> Iterator[JobInfo]:
    row = evidence.row
    for job in evidence.queue:
        if not job.running or (limit.counted == "gres/gpu" and not job.gpus):
            continue
        if limit.of_qos and job.qos != row.qos:
            continue
        if (not limit.of_qos or limit.scope == "account") and job.account != row.account:
            continue
        if limit.scope not in ("user", "own") or job.user == row.user:
            yield job


def _holders(jobs: Iterable[JobInfo]) -> Iterator[str]:
    """The jobs that hold what the job waits for; the first to end comes first."""
    found = sorted(jobs, key=lambda job: (job.time_left is None, job.time_left or 0))
    named = [
        f"{job.ref} of {job.user}"
        + ("" if job.time_left is None else f" (ends in {span(job.time_left)} at the latest)")
        for job in found
    ]
    if named:
        yield f"in use by {first_of(named, 'jobs')}"


def _own_throttle(plain: Explanation, evidence: Evidence) -> Explanation:
    row, number = evidence.row, evidence.job.experiment_id
    same = [job for job in evidence.queue if job.job_id == row.job_id]
    running = sum(job.count for job in same if job.running)
    most = next((job.throttle for job in same if job.throttle), None)
    whose = "its own experiment's limit of trials"
    remedy = plain.remedy.replace("max-slots`", f"max-slots {number} N`")
    if number is None:
        whose = "its own array's limit of elements"
        remedy = f"`scontrol update JobId={row.job_id} ArrayTaskThrottle=N` changes it."
    limit = "" if most is None else f": {running} of {most} run"
    return replace(plain, cause=f"waits for {whose} that run at once{limit}", remedy=remedy)


def _held(plain: Explanation, evidence: Evidence, code: str) -> Explanation:
    number = evidence.job.experiment_id
    if number is None or code == "JobHeldAdmin":
        return plain
    remedy = f"Let it go on with `detslurm experiment activate {number}`."
    why = evidence.job.pause_reason if code in _PAUSED else None
    if why is None:
        return replace(plain, remedy=remedy)
    if "budget" in why:
        remedy = f"Raise it with `detslurm experiment set budget {number} N`. Then l{remedy[1:]}"
    cause = f"is held, because its experiment was paused by its own jobs: {why}"
    return replace(plain, cause=cause, remedy=remedy)


def _dependencies(evidence: Evidence) -> Iterator[str]:
    condition = evidence.row.dependency
    yield f"its condition is {condition}" if condition else "Slurm does not show its condition"
    for job in evidence.details.dependencies[:SHOWN]:
        if job.final:
            yield f"job {job.ref} ended: {job.state}"
        elif job.waiting:
            yield f"job {job.ref} waits itself: {reason_of(job.reason).short}"
        else:
            left = job.time_left
            yield f"job {job.ref} runs" + ("" if left is None else f", for {span(left)} at most")
