"""Why a job waits, when it will start, and what would start it sooner. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detslurm._quantities import counted
from detslurm.sdk.waiting.explanation import Explanation, StartEstimate, Variant
from detslurm.sdk.waiting.findings import finding
from detslurm.sdk.waiting.spans import clock, clock_and_span, span
from detslurm.sdk.waiting.start_estimates import Accuracy
from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.evidence import JobEvidence


def explain(
    evidence: JobEvidence,
    accuracy: Accuracy | None = None,
    sooner: tuple[Variant, ...] = (),
) -> Explanation:
    """Say why a job waits, from the evidence alone.

    Args:
        evidence: What is known.
        accuracy: How good estimates of starts have been here.
        sooner: What was tried that might start sooner.
    """
    job, row = evidence.job, evidence.row
    common: dict[str, Any] = {
        "job_id": job.id,
        "state": job.state,
        "experiment_id": job.experiment_id,
        "trial_ids": tuple(job.trial_ids),
        "resource_pool": job.resource_pool,
        "submitted": job.submitted,
        "reason": job.reason,
        "ahead": evidence.ahead,
        "as_of": evidence.as_of,
        "unavailable": evidence.unavailable,
    }
    if not row.waiting:
        return Explanation(category=None, cause=_running(evidence), **common)
    found = finding(evidence)
    return Explanation(
        category=reason_of(row.reason).category,
        cause=f"Job {job.id} {found.cause}.",
        remedy=found.remedy,
        permanent=found.permanent,
        evidence=found.lines,
        expected_start=None if found.permanent else estimate(evidence),
        accuracy=accuracy,
        sooner=sooner,
        **common,
    )


def estimate(evidence: JobEvidence) -> StartEstimate | None:
    """When the cluster expects the job to start; None if it has not said so."""
    row, record = evidence.row, evidence.details.record
    own = next((one for one in evidence.details.reservations if one.name == row.reservation), None)
    if own is not None and own.start is not None and own.start > evidence.now:
        return StartEstimate(own.start, "its reservation", evidence.as_of, False)
    expected = (record and record.expected_start) or row.expected_start
    if expected is None:
        return None
    reason = reason_of(row.reason)
    if reason.category in ("held", "dependency"):
        return None  # left over from before
    made = (record and record.evaluated) or evidence.as_of
    if reason.code == "BeginTime":
        return StartEstimate(expected, "its begin time", made, False)
    return StartEstimate(expected, "Slurm's scheduler", made)


def estimate_text(found: Explanation, now: float) -> str:
    """The estimate with its source and age, and how good such estimates have been."""
    start = found.expected_start
    if start is None:
        return "not known: the scheduler has no estimate for it"
    if not start.scheduled:
        return f"not before {clock_and_span(start.time, now)}"
    age = f"by {start.source}, {span(now - start.made)} ago"
    when = "about " + clock_and_span(start.time, now)
    if start.time < now:
        when = f"it was expected at {clock(start.time, now)}, which is over"
    text = f"{when}, {age}"
    if found.accuracy is None:
        return text
    return f"{text}; {accuracy_text(found.accuracy)}"


def accuracy_text(known: Accuracy) -> str:
    """How good the estimates have been: `such estimates were off by ...`."""
    jobs = counted(known.jobs, "job")
    late = f", {known.late} of them later" if known.late and known.jobs > 1 else ""
    return (
        f"here such estimates were off by a median of {span(known.median_error)} over {jobs}{late}"
    )


def _running(evidence: JobEvidence) -> str:
    job = evidence.job
    since = f" since {clock(job.started, evidence.now)}" if job.started else ""
    nodes = job.nodes
    where = f" on {', '.join(nodes[:3])}" if nodes else ""
    more = f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else ""
    if job.slurm_state == "RUNNING":
        return f"Job {job.id} does not wait: it runs{since}{where}{more}."
    return f"Job {job.id} does not wait: it is {job.slurm_state}{where}{more}."
