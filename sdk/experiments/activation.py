"""Activation: held jobs are released, and trials whose jobs no longer exist get new ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.experiments.stranded import cancel_stranded
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.jobs.status import JobStatus, status_of


def lost_trials(one: ExperimentSnapshot) -> list[int]:
    """Trials that count as failed only because their jobs disappeared."""
    lost = one.facts.lost
    if one.facts.searching:
        return list(lost)
    return [t.id for t in one.trials.values() if t.id in lost and t.state == "ERROR"]


def activate(one: ExperimentSnapshot, queues: Queues) -> bool:
    """Let an experiment continue; False if a queue does not answer, so that it may stay held."""
    if one.facts.searching:
        from detslurm.sdk.searches.worker_pool import resume

        return resume(one, queues)
    one.refresh(())  # jobs that were submitted since it was read
    read = one.facts.count
    deferred = {one.facts.trial_ids[index] for index in one.facts.unsubmitted}
    known, trials = one.job_refs, sorted({*one.unfinished, *lost_trials(one)} - deferred)
    wanted = [known[trial] for trial in trials if trial in known]
    queue = one.without_foreign_jobs(queues.query(wanted, since=one.view.created))
    queue = cancel_stranded(one, queue, queues)
    statuses = {trial: status_of(known.get(trial), queue) for trial in trials}
    done = queues.release([s.job_ref for s in statuses.values() if s.job_ref and s.alive])
    gone = [t for t, s in statuses.items() if _has_no_job(s, queue.unreachable)]
    _resubmit(one, gone, queues, read)
    if deferred and not queue.unreachable:
        from detslurm.sdk.experiments.resubmission import submit_deferred

        alive = sum(s.alive is True for s in statuses.values())
        submit_deferred(one.directory, queues.cluster(one.facts.cluster), alive)
    return done and not queue.unreachable


def _has_no_job(status: JobStatus, unreachable: Collection[str]) -> bool:
    """Whether no job works for a trial any more: a queue that answers and does not know it is
    enough, because the user asks, and a newer run fences off the job if it runs."""
    if status.job_ref is None or status.alive is False:
        return True
    # A local cluster forgets nothing: a job that it does not know lives on another machine.
    return (
        status.alive is None
        and status.job_ref.cluster not in unreachable
        and status.job_ref.cluster != "local"
    )


def _resubmit(one: ExperimentSnapshot, trials: Sequence[int], queues: Queues, read: int) -> None:
    if not trials:
        return
    ids = one.facts.trial_ids
    indices = [ids.index(trial) for trial in trials]
    if one.facts.created.managed:
        from detslurm.sdk.experiments.resubmission import resubmit as submit
    else:
        from detslurm.sdk.experiments.unmanaged import submit_again as submit
    submit(one.directory, indices, queues.cluster(one.facts.cluster), read)
