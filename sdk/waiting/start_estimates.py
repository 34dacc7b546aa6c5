"""How good Slurm's estimates of starts have been here: each is logged, then compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from detslurm.sdk.waiting.evidence import Evidence, load_own, save_own
from detslurm.sdk.waiting.explain import estimate
from detslurm.sdk.waiting.explanation import Accuracy
from detslurm.store import Store, StoreError

if TYPE_CHECKING:
    from detslurm.slurm import JobInfo

_FILE: Final = "start-estimates.json"
_KEPT: Final = 500
_FORGOTTEN: Final = 30 * 86400.0  # jobs that left the queue unseen, and no run of ours is known


class LoggedEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The first estimate for a job, and when that job really started, in unix seconds."""

    cluster: str
    ref: str
    submitted: float | None
    made: float
    expected: float
    trial: tuple[int, int] | None = None  # the experiment and its trial, of a job of ours
    started: float | None = None


def log_estimate(store: Store, evidence: Evidence) -> Accuracy | None:
    """Keep the first estimate for a job, and return how good such estimates were, if known."""
    given = estimate(evidence)
    log = load_own(store, _FILE, list[LoggedEstimate], [])
    rows = {ref: row for row in evidence.queue for ref in row.refs}
    cluster = evidence.job.cluster
    new = [_settled(past, rows, store) if past.cluster == cluster else past for past in log]
    # A time that the job's user has set is not a guess, and a past time will not come true.
    if given is not None and given.scheduled and given.time > evidence.now:
        first = _logged(evidence, given.time)
        if not any(_job(past) == _job(first) for past in new):
            new.append(first)
    if new != log:
        useful = [e for e in new if e.started or evidence.now - e.made < _FORGOTTEN]
        save_own(store, _FILE, useful[-_KEPT:])
    errors = [abs(past.started - past.expected) for past in new if past.started is not None]
    return Accuracy(len(errors), statistics.median(errors)) if errors else None


def _logged(evidence: Evidence, expected: float) -> LoggedEstimate:
    job, row = evidence.job, evidence.row
    trial = (job.experiment_id, job.trial_ids[0]) if job.experiment_id and job.trial_ids else None
    return LoggedEstimate(
        cluster=job.cluster,
        ref=row.refs[0],
        submitted=row.submitted,
        made=evidence.now,
        expected=expected,
        trial=trial,
    )


def _job(estimate: LoggedEstimate) -> tuple[str, str, float | None]:
    return estimate.cluster, estimate.ref, estimate.submitted


def _settled(past: LoggedEstimate, rows: Mapping[str, JobInfo], store: Store) -> LoggedEstimate:
    """The estimate with the start that is known by now: by the queue, else by the store."""
    if past.started is not None:
        return past
    row = rows.get(past.ref)
    if row is None:
        started = _start_in_store(past, store)
    else:  # perhaps another job of the same id
        started = row.started if row.submitted == past.submitted else None
    # A run before the estimate has nothing to do with it.
    known = started is not None and started >= past.made
    return msgspec.structs.replace(past, started=started) if known else past


def _start_in_store(past: LoggedEstimate, store: Store) -> float | None:
    """When a run of the trial began in that job."""
    if past.trial is None:
        return None
    experiment, trial = past.trial
    try:
        runs = store.experiment(experiment).trial(trial).runs()
    except StoreError:
        return None
    starts = (run.start.time for run in runs if run.start.job.ref == past.ref)
    return min((t for t in starts if t is not None and t >= past.made), default=None)
