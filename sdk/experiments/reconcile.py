"""Compares experiments with the queue: whether their trials' jobs wait, run or are lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from detslurm._base.states import FINISHED
from detslurm.sdk.experiments import unmanaged
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, has_not_begun
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.jobs.status import JobRef, JobStatus, QueueSnapshot, status_of
from detslurm.store import ExperimentDir, StoreError, TrialRow, fold_facts, fs
from detslurm.store.records import Intent, Lost, typed

# Runners read the intents every minute, and at once where they are notified.
KILL_UNCONFIRMED_SECONDS = 180.0
_WIDTH = 300

_MEND = "; mend the configuration and submit it again"
_RETRY = "; once that is fixed, `detslurm e activate {number}` queues it again"
_NEVER_QUEUED = (
    "no job was queued for it: where its submission was killed, `detslurm e kill {number}` and"
    " `detslurm e delete {number}` remove it, and you can submit it again"
)


def attach_job_status(found: Sequence[ExperimentSnapshot], queues: Queues) -> None:
    """Add the queue's state of unfinished trials to experiments, with at most one query a
    cluster."""
    for one in found:
        one.message = None
        if one.facts.is_unmanaged_script and not one.facts.desired.deleted:
            trials = map(one.directory.trial, one.unfinished)
            one.job_statuses = unmanaged.job_statuses(trials, one.heartbeats)
            _mark_lost(one, {t: s for t, s in one.job_statuses.items() if s.alive is False})
        elif one.facts.unsubmitted and not one.facts.desired.deleted:
            _reconcile_unsubmitted(one)
        elif one.never_queued:
            one.message = _NEVER_QUEUED.format(number=one.directory.id)
    wanted = {id(one): _wanted(one) for one in found}
    every = {job_ref for known in wanted.values() for job_ref in known.values()}
    workers = {job_ref for one in found if one.facts.searching for job_ref in one.worker_jobs}
    if not every and not workers:
        return
    asking = [one for one in found if wanted[id(one)] or one.facts.searching]
    since = min(one.facts.created.time or 0.0 for one in asking)
    runs = [{row.id: row.run_count for row in one.trials.values()} for one in found]
    queue = queues.query(every, since=since, queue_only=workers)
    for one, known_runs in zip(found, runs, strict=True):
        if queue.asked is None or queue.asked != one.queue_asked:
            one.known_runs, one.queue_asked = known_runs, queue.asked
        if one.never_queued:
            continue
        if one.facts.searching:
            _reconcile_search(one, one.without_foreign_jobs(queue), queues)
        else:
            _reconcile_trials(one, wanted[id(one)], one.without_foreign_jobs(queue), queues)


def snapshot_warnings(found: Iterable[ExperimentSnapshot]) -> Iterator[str]:
    """Warnings: experiments without jobs, and runs that hold slots for nothing."""
    for one in found:
        if one.never_queued and one.message:
            yield f"experiment {one.directory.id}: {one.message}"
        for trial, reason in list(one.idle.items())[:10]:
            yield f"trial {trial} of experiment {one.directory.id} holds its slots idle: {reason}"


def _reconcile_unsubmitted(one: ExperimentSnapshot) -> None:
    """Mark trials that are not submitted yet, and end those that the user has stopped: no process
    takes or submits a trial before it has seen the user's intent."""
    ids, desired = one.facts.trial_ids, one.facts.desired
    unwanted = {ids[i] for i in one.facts.deferred if desired.stops(ids[i])} & {*one.unfinished}
    status = JobStatus(None, alive=False, message="no job was submitted for it")
    _mark_lost(one, dict.fromkeys(sorted(unwanted), status))
    text, known = one.facts.submission, one.job_refs
    if text and not any(trial in known for trial in one.unfinished):
        text += f"; `detslurm e activate {one.directory.id}` submits more"
    one.message = text or one.message


def _wanted(one: ExperimentSnapshot) -> dict[int, JobRef]:
    if one.facts.desired.deleted:
        return {}
    known = one.job_refs
    return {trial: known[trial] for trial in one.unfinished if trial in known}


def _reconcile_search(one: ExperimentSnapshot, queue: QueueSnapshot, queues: Queues) -> None:
    """Judge the trials at work by their workers, and the search by whether any worker is left."""
    one.job_statuses = {
        t: status_of(p, queue) for t, p in one.job_refs.items() if t in one.unfinished
    }
    one.reread_waiting()
    alive = [p for p in one.worker_jobs if p in queue.jobs and not queue.jobs[p].final]
    one.workers = {job_ref: queue.jobs[job_ref] for job_ref in alive}
    dead = {t: s for t, s in one.job_statuses.items() if _is_dead(one, t, s, queue)}
    if one.facts.desired.stopping:
        _mark_lost(one, dead)
        return
    one.message = next(iter(one.facts.lost.values()), None) or _why_all_wait(one, alive, queue)
    if alive or one.facts.desired.paused or one.facts.lost:
        return
    if any(job_ref.cluster in queue.unreachable for job_ref in one.worker_jobs):
        return
    _reconcile_without_workers(one, queues)


def _why_all_wait(
    one: ExperimentSnapshot, alive: Sequence[JobRef], queue: QueueSnapshot
) -> str | None:
    """Why none of a search's workers runs; the standby worker comes last."""
    if not all(queue.jobs[job_ref].waiting for job_ref in alive):
        return None
    paused = one.facts.desired.paused
    return next((status_of(job_ref, queue, paused=paused).message for job_ref in alive), None)


def _reconcile_without_workers(one: ExperimentSnapshot, queues: Queues) -> None:
    """The search has no worker, running or pending: it stops here unless the user acts."""
    one.refresh()  # the last worker may have ended the search a moment ago
    search = one.search
    if search is None or not one.facts.searching or search.state.done:
        return
    if search.name == "custom":
        one.message = "no worker is in the queue: the search waits for the runner of its method"
        return
    one.message = "no worker is left in the queue; `detslurm e activate` submits new ones"
    since = one.facts.created.time
    queue = one.without_foreign_jobs(queues.query(one.worker_jobs, since=since))
    statuses = [status_of(job_ref, queue) for job_ref in one.worker_jobs]
    if all(status.alive is False for status in statuses):
        reason = "all workers of the search have ended; `detslurm e activate` submits new ones"
        failed = _failed_setups(one, statuses)
        if len(failed) == len({status.job_ref for status in statuses}):
            reason = one.message = "".join(next(iter(failed.values())))
        one.facts.lost = dict.fromkeys(search.open_ids, reason)
        one.changed()
        for trial in list(one.trials):
            one.read_trial(trial)
        _record_lost(one.directory, {reason: search.open_ids})


def _reconcile_trials(
    one: ExperimentSnapshot, known: Mapping[int, JobRef], queue: QueueSnapshot, queues: Queues
) -> None:
    """Judge each unfinished trial; one whose job is dead is read again before it is believed. A
    paused trial that has not begun has nothing to lose."""
    if one.facts.is_unmanaged_script:
        return
    paused = one.facts.desired.paused
    waiting = {one.facts.trial_ids[index] for index in one.facts.unsubmitted}
    stops = one.facts.desired.stops
    resting = {
        row.id for row in one.trials.values() if paused and has_not_begun(row) and not stops(row.id)
    }
    one.job_statuses = {
        t: status_of(known.get(t), queue, paused=paused) for t in one.unfinished if t not in waiting
    }
    one.reread_waiting()
    judged = ((t, s) for t, s in one.job_statuses.items() if t not in resting)
    dead = {t: s for t, s in judged if _is_dead(one, t, s, queue)}
    for reason in _mark_lost(one, _without_live_runs(one, dead, queues)):
        queues.warn(f"experiment {one.directory.id}: {reason}")


def _without_live_runs(
    one: ExperimentSnapshot, dead: Mapping[int, JobStatus], queues: Queues
) -> dict[int, JobStatus]:
    """Without those that another job than the newest works at: two were submitted for them at once,
    or a job that an administrator has requeued was faster."""
    others: dict[int, JobRef] = {}
    for trial, status in dead.items():
        view = one.read_trial(trial)
        ref = view.runs[-1].job.ref if view.runs and view.state == "RUNNING" else None
        if status.job_ref is not None and ref not in (None, status.job_ref.ref):
            others[trial] = JobRef(status.job_ref.cluster, str(ref))
    if not others:
        return dict(dead)
    queue, folder = queues.query((), queue_only=others.values()), one.folder_of_jobs
    if queue.unreachable:
        return {trial: status for trial, status in dead.items() if trial not in others}
    alive = {r for r, job in queue.jobs.items() if not job.final and not job.is_foreign_to(folder)}
    return {trial: status for trial, status in dead.items() if others.get(trial) not in alive}


def _is_dead(one: ExperimentSnapshot, trial: int, status: JobStatus, queue: QueueSnapshot) -> bool:
    """Whether there is evidence that a trial's job has ended and will not return. For what the
    user has killed some time ago it is enough that the queue answers and knows no such job. This
    may be another cluster that sees the same store: a live runner had the time to read it."""
    if status.alive is not None or status.job_ref is None:
        return status.alive is False
    where = status.job_ref.cluster
    if not one.facts.desired.kills(trial) or where in queue.unreachable:
        return False
    return _killed_since(one.directory, trial) > KILL_UNCONFIRMED_SECONDS


def _killed_since(directory: ExperimentDir, trial: int) -> float:
    """Seconds since the user killed a trial, by the clock of the file system."""
    names = (directory.log.name(fact["n"]) for fact in directory.facts() if _kills(fact, trial))
    first, now = next(names, None), fs.time_there(directory.store.path)
    then = fs.modified(first) if first is not None else None
    return now - then if now is not None and then is not None else 0.0


def _kills(fact: Mapping[str, Any], trial: int) -> bool:
    found = typed(fact)
    if not isinstance(found, Intent):
        return False
    return found.intent == "kill" or (found.intent == "kill_trial" and found.trial == trial)


def _mark_lost(one: ExperimentSnapshot, dead: Mapping[int, JobStatus]) -> Collection[str]:
    """Record that trials were lost with their jobs; why those were that the user can bring back."""
    if not dead:
        return ()
    hint = _hint(one)
    # Its end record or a successor may have been written since we read the trial.
    one.facts = fold_facts(one.directory)
    one.changed()
    now = one.job_refs
    lost: dict[str, list[int]] = {}
    waiting = [s for t, s in dead.items() if one.trials[t].state != "RUNNING"]
    failed = _failed_setups(one, waiting)
    for trial, status in dead.items():
        if now.get(trial) != status.job_ref:
            one.read_trial(trial)
            continue
        reason = f"{status.message}{_how(one.trials[trial])}"
        if status in waiting and status.job_ref in failed:
            cause, remedy = failed[status.job_ref]
            reason = f"{cause}; {reason}{remedy}"
        elif not (one.facts.desired.stops(trial) or one.facts.is_unmanaged_script):
            reason += hint
        one.facts.lost[trial] = reason
        view = one.read_trial(trial)
        if view.state not in FINISHED or view.final:
            del one.facts.lost[trial]  # paused, or it has got its end record meanwhile
        else:
            lost.setdefault(reason, []).append(trial)
    _record_lost(one.directory, lost)
    endings = (hint, _MEND, _RETRY.format(number=one.directory.id))
    return [reason for reason in lost if reason.endswith(endings)]


def _how(row: TrialRow) -> str:
    """How far a trial was whose job has ended."""
    if row.state == "RUNNING":
        return "; how its run ended is not recorded"
    return f", before run {row.run_count + 1} began" if row.run_count else ", before its run began"


def _hint(one: ExperimentSnapshot) -> str:
    """Name the remedy for a trial whose job is gone."""
    number = one.directory.id
    if one.facts.created.managed:
        return f"; `detslurm e activate {number}` queues it again"
    return (
        f"; `detslurm e activate {number}` submits its script again. Not so if the script has"
        " submitted itself: that job trains already, as another experiment"
    )


def _failed_setups(
    one: ExperimentSnapshot, statuses: Iterable[JobStatus]
) -> dict[JobRef | None, tuple[str, str]]:
    """The jobs among these that failed before a run, each with the failure and the remedy. The
    failure is a line of their setup, or a module, else the last line of their output. The elements
    of an array share a file: its last line counts only where no trial has begun."""
    failed = [s.job_ref for s in statuses if s.job_ref and s.job and s.job.state == "FAILED"]
    if not failed:
        return {}
    from detslurm.sdk.trials.logs import printed  # lists of what went well need none
    from detslurm.slurm import failed_setups

    output = {job: [*printed(one.directory, job)] for job in {ref.job_id for ref in failed}}
    setups = {job: failed_setups(lines) for job, lines in output.items()}
    begun = any(row.run_count for row in one.trials.values())
    causes: dict[JobRef | None, tuple[str, str]] = {}
    for ref in failed:
        last = next(filter(str.strip, output[ref.job_id]), "").strip()[:_WIDTH]
        if setup := setups[ref.job_id].get(ref.ref):
            causes[ref] = setup, _MEND
        elif last and not begun:
            causes[ref] = last, _RETRY.format(number=one.directory.id)
    return causes


def _record_lost(directory: ExperimentDir, lost: Mapping[str, Sequence[int]]) -> None:
    # Slurm forgets within minutes: evidence of a death is kept as a fact.
    for reason, trials in lost.items():
        try:
            directory.append(Lost(trials=tuple(trials), reason=reason))
        except StoreError:
            return  # a reader without the right to write, or a full disk: it only shows it
    if lost:
        from detslurm.notices.raising import raise_end  # only here: jobs rarely die

        raise_end(directory)
