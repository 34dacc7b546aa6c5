"""Why a job waits for a limit of a QOS or an account: which, and who uses it up. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from detslurm.sdk.waiting.finding import WaitFinding, held_by

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import JobEvidence
    from detslurm.slurm.pending_details import LimitUse
    from detslurm.slurm.queued_job import QueuedJob
    from detslurm.slurm.reasons import Limit

_TOO_MUCH = "Kill it, and submit it again with less, or with another QOS or account."


def limited(evidence: JobEvidence, plain: WaitFinding, limit: Limit) -> WaitFinding:
    """Which limit of which QOS or account it is, and who uses what it allows."""
    need, known = _needed(evidence.row, limit), evidence.details.limits
    # Several QOS may count, and the reason does not say which of them it is.
    short = [one for one in known if need is None or one.room < need] or list(known)
    lines = [_bound(one, limit, need) for one in short]
    if limit.scope not in ("job", "node") and not limit.spent:
        lines += held_by(_same_limit(evidence, limit))
    if need is None and evidence.exclusive:
        lines.append("the job asks for whole nodes: all that they have counts")
    if len(short) != 1 or limit.minimum:
        return replace(plain, lines=tuple(lines))
    (one,) = short
    if need is not None and need > one.most:
        cause = f"asks for {need} {limit.words}, and {one.who} grants {one.most}"
        return WaitFinding(cause, _TOO_MUCH, True, tuple(lines))
    used = "" if one.used is None else f" ({one.used} of {one.most} {limit.words} in use)"
    return replace(plain, cause=f"waits for a limit of {one.who}{used}", lines=tuple(lines))


def _needed(row: QueuedJob, limit: Limit) -> int | None:
    """What the job adds to what a limit counts; None where that is not known."""
    known = {
        "gres/gpu": row.gpus,
        "cpu": row.cpus,
        "mem": row.memory,
        "node": row.node_count,
        "jobs": 1,
        "submitted": 1,
    }
    # Slurm counts more than was asked for: of whole nodes, all that they have.
    need = known.get(limit.counted)
    if need and limit.scope == "node":
        need = -(-need // (row.node_count or 1))
    return need or None


def _bound(one: LimitUse, limit: Limit, need: int | None) -> str:
    used = "" if one.used is None else f", {one.used} in use"
    more = "" if need is None else f"; the job needs {need}"
    return f"{one.who}: at most {one.most} {limit.words}{used}{more}"


def _same_limit(evidence: JobEvidence, limit: Limit) -> list[QueuedJob]:
    row = evidence.row
    found = [job for job in evidence.queue if job.running]
    if limit.of_qos:
        found = [job for job in found if job.qos == row.qos]
    if not limit.of_qos or limit.scope == "account":
        found = [job for job in found if job.account == row.account]
    if limit.scope in ("user", "own"):
        found = [job for job in found if job.user == row.user]
    return [job for job in found if limit.counted != "gres/gpu" or job.gpus]
