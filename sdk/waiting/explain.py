"""Why a job waits, when it will start, and what would start it sooner."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from detslurm._base.quantities import counted
from detslurm.sdk.waiting.causes import made_exact
from detslurm.sdk.waiting.explanation import Accuracy, Explanation, StartEstimate, Variant
from detslurm.sdk.waiting.resources import free_slots
from detslurm.sdk.waiting.spans import clock, clock_and_span, span
from detslurm.slurm import SlurmError
from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import Evidence
    from detslurm.slurm import Cluster

_SHORTEST = 600  # seconds: half of less is hardly ever worth a start


def explain(
    evidence: Evidence, accuracy: Accuracy | None = None, sooner: tuple[Variant, ...] = ()
) -> Explanation:
    """Explain why a job waits, from the evidence alone."""
    job, row = evidence.job, evidence.row
    reason = reason_of(row.reason)
    plain = Explanation(
        job_id=job.id,
        state=job.state,
        experiment_id=job.experiment_id,
        trial_ids=tuple(job.trial_ids),
        resource_pool=job.resource_pool,
        submitted=job.submitted,
        category=reason.category if row.waiting else None,
        reason=job.reason,
        cause=reason.sentence if row.waiting else _running(evidence),
        remedy=reason.remedy.format(ref=row.ref),
        permanent=reason.permanent,
        ahead=evidence.users_ahead,
        accuracy=accuracy,
        sooner=sooner,
        as_of=evidence.as_of,
        unavailable=evidence.unavailable,
    )
    found = made_exact(plain, evidence) if row.waiting else plain
    start = None if found.permanent else estimate(evidence)
    return replace(found, cause=f"Job {job.id} {found.cause}.", expected_start=start)


def _running(evidence: Evidence) -> str:
    job = evidence.job
    since = f" since {clock(job.started, evidence.now)}" if job.started else ""
    nodes = job.nodes
    where = f" on {', '.join(nodes[:3])}" if nodes else ""
    more = f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else ""
    state = f"it runs{since}" if job.slurm_state == "RUNNING" else f"it is {job.slurm_state}"
    return f"does not wait: {state}{where}{more}"


def estimate(evidence: Evidence) -> StartEstimate | None:
    """When the cluster expects the job to start; None without an estimate."""
    row, details = evidence.row, evidence.details
    begins = next((r.start for r in details.reservations if r.name == row.reservation), None)
    if begins is not None and begins > evidence.now:
        return StartEstimate(begins, "its reservation", evidence.as_of, False)
    reason = reason_of(row.reason)
    if row.expected_start is None or reason.category in ("held", "dependency"):
        return None  # what Slurm shows of a held job is left over from before
    made = details.evaluated or evidence.as_of
    if reason.code == "BeginTime":
        return StartEstimate(row.expected_start, "its begin time", made, False)
    return StartEstimate(row.expected_start, "Slurm's scheduler", made)


def estimate_text(found: Explanation, now: float) -> str:
    """The estimate with its source and age, and how good such estimates have been."""
    start, known = found.expected_start, found.accuracy
    if start is None:
        return "not known: the scheduler has no estimate for it"
    if not start.scheduled:
        return f"not before {clock_and_span(start.time, now)}"
    when = "about " + clock_and_span(start.time, now)
    if start.time < now:
        when = f"it was expected at {clock(start.time, now)}, which is over"
    text = f"{when}, by {start.source}, {span(now - start.made)} ago"
    if known is None:
        return text
    error = f"a median of {span(known.median_error)} over {counted(known.jobs, 'job')}"
    return f"{text}; here such estimates were off by {error}"


def try_variants(evidence: Evidence, cluster: Cluster) -> tuple[Variant, ...]:
    """Ask the cluster about each variant: half the time, fewer GPUs, another partition."""
    now = estimate(evidence)
    found = []
    for change, options, command in _questions(evidence):
        try:
            start = cluster.start_of(options)
        except SlurmError as error:
            found.append(Variant(change=change, refusal=error.message.splitlines()[0]))
            continue
        sooner = None if now is None else now.time - start
        found.append(Variant(change=change, expected_start=start, sooner=sooner, command=command))
    return tuple(found)


def _questions(evidence: Evidence) -> Iterator[tuple[str, Sequence[str], str]]:
    """Each variant's change, its options of sbatch, and the command that makes the change."""
    row, same = evidence.row, evidence.details.options
    reason = reason_of(row.reason)
    if not same or not row.waiting or reason.category not in ("resources", "quota"):
        return
    if reason.code == "JobArrayTaskLimit":
        return
    limit = row.time_limit
    pool = [f"--partition={','.join(row.partitions)}"] if row.partitions else []
    time = [] if limit is None else [f"--time={max(1, limit // 60)}"]
    if limit is not None and limit >= 2 * _SHORTEST:
        half = limit // 120
        command = f"scontrol update JobId={shlex.quote(row.ref)} TimeLimit={half}"
        options = (*same, *pool, f"--time={half}")
        yield f"a time limit of {span(60 * half)}", options, command
    if fewer := _fewer_gpus(same):
        yield fewer[0], (*fewer[1], *pool, *time), ""
    if name := _emptiest_partition(evidence):
        command = f"detslurm job update {row.job_id} --resource-pool {name}"
        yield f"partition {name}", (*same, f"--partition={name}", *time), command


def _fewer_gpus(same: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """Half the GPUs of the first option that asks for several, in words and as options."""
    for place, option in enumerate(same):
        match = re.fullmatch(r"(--gres=gpu:(?:[^:]+:)?|--gpus=(?:[^:]+:)?)(\d+)(,.*)?", option)
        if match is not None and int(match[2]) > 1:
            half = int(match[2]) // 2
            change = counted(half, "GPU") + (" a node" if option.startswith("--gres") else "")
            fewer = f"{match[1]}{half}{match[3] or ''}"
            return change, (*same[:place], fewer, *same[place + 1 :])
    return None


def _emptiest_partition(evidence: Evidence) -> str:
    """The other partition with the most free slots; the cluster knows if it is open to the user."""
    free: dict[str, int] = {}
    for node in evidence.nodes:
        for name in set(node.partitions) - set(evidence.row.partitions):
            free[name] = free.get(name, 0) + free_slots(node, evidence.row)
    return max(sorted(free), key=lambda name: free[name], default="")
