"""Experiments as they are now: the store's facts and one query of the queue, put together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from detslurm._states import FINISHED, UNKNOWN
from detslurm.sdk.experiments import unmanaged
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.jobs.status import JobRef, JobStatus, QueueSnapshot, job_refs, status_of
from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    ExperimentRow,
    ExperimentView,
    FoldContext,
    Problem,
    Store,
    StoreError,
    TrialDir,
    TrialRow,
    TrialView,
    fold_experiment,
    fold_facts,
    fs,
    view_trial,
)
from detslurm.store.experiment_fold import experiment_view
from detslurm.store.reading import ReadCache, started_trials
from detslurm.store.records import Intent, Lost, typed
from detslurm.store.trial_fold import trial_view

if TYPE_CHECKING:
    from detslurm.sdk.searches.view import SearchView
    from detslurm.slurm import JobInfo

# Runners read the intents every minute, and at once where they are notified.
KILL_UNCONFIRMED_SECONDS = 180.0

_NEVER_QUEUED = (
    "no job was queued for it: where its submission was killed, `detslurm e kill {number}` and"
    " `detslurm e delete {number}` remove it, and you can submit it again"
)


class Finished(NamedTuple):
    """A finished experiment of which only its line in the index was read."""

    store: Store
    row: ExperimentRow

    @property
    def directory(self) -> ExperimentDir:
        """Its directory, made when it is asked for: a list has thousands and needs none."""
        return ExperimentDir(self.store, self.row.id)


@dataclass
class ExperimentSnapshot:
    """One experiment, its trials, and what is known of their jobs."""

    directory: ExperimentDir
    facts: ExperimentFacts
    trials: dict[int, TrialRow]
    problems: tuple[Problem, ...] = ()
    job_statuses: dict[int, JobStatus] = field(default_factory=dict)
    known_runs: dict[int, int] = field(default_factory=dict)  # by trial, when the queue was asked
    queue_asked: float | None = None  # where the answer is an older one
    message: str | None = None
    heartbeats: unmanaged.Heartbeats = field(default_factory=dict)
    foreign_jobs: set[JobRef] = field(default_factory=set)  # other jobs under the ids of its own
    workers: Mapping[JobRef, JobInfo] = field(default_factory=dict)  # a search's, in the queue
    _read: dict[int, ReadCache] = field(default_factory=dict)
    _keeps_logs: bool = False  # somebody else's: also those of trials that are over
    _view: ExperimentView | None = None
    _refined: dict[int, TrialRow] = field(default_factory=dict)  # as the view shows a search's

    @property
    def folder_of_jobs(self) -> str:
        """Where its jobs work, by which they are known.

        A store that was moved or copied has other paths than its records; a batch script of the
        user's own works anywhere.
        """
        folder, own = self.facts.folder, self.directory.jobs
        return str(own) if PurePath(folder).parts[-3:] == own.parts[-3:] else folder

    def without_foreign_jobs(self, queue: QueueSnapshot) -> QueueSnapshot:
        """Its own jobs only: a cluster whose job ids start over gives the same ids to others."""
        ids = self.worker_jobs if self.facts.searching else self.job_refs.values()
        seen = {job_ref: queue.jobs[job_ref] for job_ref in ids if job_ref in queue.jobs}
        folder = self.folder_of_jobs
        self.foreign_jobs |= {job_ref for job_ref, job in seen.items() if job.is_foreign_to(folder)}
        if not self.foreign_jobs:
            return queue
        jobs = {
            job_ref: job for job_ref, job in queue.jobs.items() if job_ref not in self.foreign_jobs
        }
        return queue._replace(jobs=jobs)

    @property
    def view(self) -> ExperimentView:
        """The experiment as it is now, assembled once after each change."""
        if self._view is None:
            self._view = self._assembled()
        return self._view

    @property
    def row(self) -> ExperimentRow:
        """The part of the view that the index keeps."""
        return self.view.row()

    @property
    def trial_rows(self) -> dict[int, TrialRow]:
        """The trials by id, as the view shows them: of a search's it refines the states."""
        self.view  # noqa: B018 (refines them)
        return self._refined if self.facts.searching else self.trials

    def changed(self) -> None:
        """Something that the view shows was read again, or judged otherwise."""
        self._view = None

    def _assembled(self) -> ExperimentView:
        self.facts.problems = self.problems
        if not self.facts.searching:
            return experiment_view(self.directory.id, self.facts, list(self.trials.values()))
        search, paused = self._search, self.facts.desired.paused
        # Apart: a trial that the search has let go since it was read is to be read once more.
        self._refined = {n: search.refine(row, paused=paused) for n, row in self.trials.items()}
        view = experiment_view(self.directory.id, self.facts, list(self._refined.values()))
        return msgspec.structs.replace(view, progress=search.progress)

    @cached_property
    def _search(self) -> SearchView:
        from detslurm.sdk.searches.view import SearchView  # only here: most experiments have none

        return SearchView(self.directory, self.facts)

    @property
    def search(self) -> SearchView | None:
        """The search that decides, or has decided, which trials there are."""
        return self._search if self.facts.created.search else None

    def refresh(self, trials: Collection[int] | None = None) -> None:
        """Read what is new, of these trials, or of all that have not ended."""
        before = self.facts.lost
        self.facts = fold_facts(self.directory)
        self.changed()
        found = before.keys() - self.facts.lost.keys()  # lost trials that continue
        ids: Collection[int] = self.facts.trial_ids
        if self.facts.searching:
            self._search.refresh(self.facts)
            ids = self._search.created_ids
        for trial in ids if trials is None else trials:
            known = self.trials.get(trial)
            if known is None or known.state not in FINISHED or trial in found:
                self.read_trial(trial)

    def follow_search(self) -> None:
        """Read on in the search's log, and of the trials those that it has moved.

        What waits in it, for a worker or at a rung, does not change until it moves.
        """
        self._search.refresh(self.facts)
        self.changed()
        for trial in self._search.moved():
            known = self.trials.get(trial)
            if known is None or known.state not in FINISHED:
                self.read_trial(trial)

    @property
    def worker_jobs(self) -> list[JobRef]:
        """All jobs of a search, each of which works for any of its trials."""
        return [JobRef(job.cluster, ref) for job in self.facts.jobs for ref in job.refs]

    @property
    def job_refs(self) -> dict[int, JobRef]:
        """trial id -> reference of its newest job; in a search the job that works at it now."""
        if self.facts.searching:
            return self._search.job_refs()
        found, origin = job_refs(self.facts.jobs), self.facts.origin
        pairs = ((t, found.get(origin.get(i, i))) for i, t in enumerate(self.facts.trial_ids))
        return {trial: job_ref for trial, job_ref in pairs if job_ref is not None}

    @property
    def unfinished(self) -> list[int]:
        """Trials without an end record."""
        return [trial.id for trial in self.trials.values() if trial.state not in FINISHED]

    @property
    def has_news(self) -> bool:
        """Whether a fact was added since its facts were read."""
        return fs.exists(self.directory.log.name(self.facts.count + 1), expected=True)

    @property
    def never_queued(self) -> bool:
        """Whether its submission broke off before its first job, or is about to queue that.

        The two look alike in the store: what is said of one must do no harm to the other.
        """
        facts = self.facts
        recorded = facts.jobs or facts.folder or facts.unsubmitted
        if recorded or not facts.created.managed or facts.desired.stopping or facts.desired.deleted:
            return False
        return not self.view.finished and not any(row.run_count for row in self.trials.values())

    @property
    def idle(self) -> dict[int, str]:
        """Why a run is known to hold its slots for nothing, by the id of its trial."""
        rows = ((fact, self.trials.get(trial)) for trial, fact in self.facts.idle.items())
        return {
            row.id: fact.reason
            for fact, row in rows
            if row is not None and fact.reason is not None
            if row.state == "RUNNING" and row.run_count == fact.run
        }

    def read_trial(self, trial: int) -> TrialView:
        """Everything about one trial, read now."""
        context, cache = self.facts.context(trial), self._read.setdefault(trial, {})
        view = self._back_in_queue(view_trial(self.directory.trial(trial), context, cache))
        if self.facts.searching:
            view = self._search.refine(view, paused=self.facts.desired.paused)
        if view.run_count or view.state == UNKNOWN or not self.facts.searching:
            self.trials[trial] = view.row()
            self.changed()
        if view.state in FINISHED and not self._keeps_logs:
            self._read.pop(trial, None)  # never read again: thousands of logs need no memory
        return view

    def waiting_views(self) -> dict[int, TrialView]:
        """What `read_trial` returns of trials that have not begun, by id, of listings alone.

        None where these are few: whether one has begun is asked by its name then.
        """
        new = [row.id for row in self.trials.values() if _has_not_begun(row)]
        started = started_trials(self.directory, self.facts, len(new))
        if started is None:
            return {}
        context, number = self.facts.context, self.directory.id
        return {t: trial_view(t, number, (), context(t)) for t in new if t not in started}

    def _back_in_queue(self, view: TrialView) -> TrialView:
        """The trial, queued if the job that ran it is pending again: the run died with its node."""
        status = self.job_statuses.get(view.id)
        if view.state != "RUNNING" or status is None or not status.waits:
            return view
        if view.run_count > self.known_runs.get(view.id, 0):
            return view  # the job has begun since it was seen in the queue
        newest = view.runs[-1]
        if self.queue_asked is not None and (newest.started or 0.0) > self.queue_asked:
            return view  # the same, by the clock of its node
        if status.job_ref is None or newest.job.get("ref") != status.job_ref.ref:
            return view
        state = "PAUSED" if self.facts.desired.paused else "QUEUED"
        return msgspec.structs.replace(view, state=state)

    def reread_waiting(self) -> None:
        """Read those again that are running in the store's view although their jobs are pending."""
        for trial, status in self.job_statuses.items():
            known = self.trials.get(trial)
            if status.waits and known is not None and known.state == "RUNNING":
                self.read_trial(trial)


def _has_not_begun(row: TrialRow) -> bool:
    return not row.run_count and row.state in ("QUEUED", "PAUSED")


def read(directory: ExperimentDir, logs: dict[int, ReadCache] | None = None) -> ExperimentSnapshot:
    """An experiment by the store alone.

    `logs` has what earlier readings know of trials' logs, by trial: only what is new is read.
    """

    def fold(trial: TrialDir, context: FoldContext) -> TrialView:
        return view_trial(trial, context, None if logs is None else logs.setdefault(trial.id, {}))

    facts = fold_facts(directory)
    view = fold_experiment(directory, facts, fold=fold)
    trials = {row.id: row for row in view.trials}
    found = ExperimentSnapshot(directory, facts, trials, view.problems)
    if logs is not None:
        found._read, found._keeps_logs = logs, True
    if not facts.searching:
        found._view = view
        return found
    found.search  # noqa: B018 (raises here what can't be read of it)
    return found


def attach_job_status(found: Sequence[ExperimentSnapshot], queues: Queues) -> None:
    """Add what the queue knows of their unfinished trials to experiments.

    One query a cluster for all of them, none when all is over.
    """
    for one in found:
        one.message = None
        if one.facts.is_unmanaged_script and not one.facts.desired.deleted:
            trials = map(one.directory.trial, one.unfinished)
            one.job_statuses = unmanaged.job_statuses(trials, one.heartbeats)
            _mark_lost(one, {t: s for t, s in one.job_statuses.items() if s.alive is False})
        elif one.facts.unsubmitted and not one.facts.desired.deleted:
            _assess_unsubmitted(one)
        elif one.never_queued:
            one.message = _NEVER_QUEUED.format(number=one.directory.id)
    wanted = {id(one): _wanted(one) for one in found}
    every = {job_ref for known in wanted.values() for job_ref in known.values()}
    workers = {job_ref for one in found if _is_live_search(one) for job_ref in one.worker_jobs}
    if not every and not workers:
        return
    asking = [one for one in found if wanted[id(one)] or _is_live_search(one)]
    since = min(one.facts.created.time or 0.0 for one in asking)
    for one in found:
        one.known_runs = {row.id: row.run_count for row in one.trials.values()}
    queue = queues.query(every, since=since, queue_only=workers)
    for one in found:
        one.queue_asked = queue.asked
        if one.never_queued:
            continue
        if _is_live_search(one):
            assess_search(one, one.without_foreign_jobs(queue), queues)
        else:
            _assess_trials(one, wanted[id(one)], one.without_foreign_jobs(queue), queues)


def snapshot_warnings(found: Iterable[ExperimentSnapshot]) -> Iterator[str]:
    """What users should know: experiments without jobs, and runs that hold slots for nothing."""
    for one in found:
        if one.never_queued and one.message:
            yield f"experiment {one.directory.id}: {one.message}"
        for trial, reason in list(one.idle.items())[:10]:
            yield f"trial {trial} of experiment {one.directory.id} holds its slots idle: {reason}"


def _assess_unsubmitted(one: ExperimentSnapshot) -> None:
    """Say that trials are not submitted yet, and end those that nobody wants any more.

    After the user's intent nobody takes or submits them: who would has to see that fact first.
    """
    ids, desired = one.facts.trial_ids, one.facts.desired
    unwanted = {ids[i] for i in one.facts.deferred if desired.stops(ids[i])} & {*one.unfinished}
    status = JobStatus(None, alive=False, message="no job was submitted for it")
    _mark_lost(one, dict.fromkeys(sorted(unwanted), status))
    text, known = one.facts.submission, one.job_refs
    if text and not any(trial in known for trial in one.unfinished):
        text += f"; `detslurm e activate {one.directory.id}` submits more"
    one.message = text or one.message


def _is_live_search(one: ExperimentSnapshot) -> bool:
    return one.facts.searching and not one.facts.desired.deleted


def _wanted(one: ExperimentSnapshot) -> dict[int, JobRef]:
    if one.facts.desired.deleted:
        return {}
    known = one.job_refs
    return {trial: known[trial] for trial in one.unfinished if trial in known}


def assess_search(one: ExperimentSnapshot, queue: QueueSnapshot, queues: Queues) -> None:
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
    _assess_without_workers(one, queues)


def _why_all_wait(
    one: ExperimentSnapshot, alive: Sequence[JobRef], queue: QueueSnapshot
) -> str | None:
    """Why none of a search's workers runs; the standby worker comes last."""
    if not all(queue.jobs[job_ref].waiting for job_ref in alive):
        return None
    paused = one.facts.desired.paused
    return next((status_of(job_ref, queue, paused=paused).message for job_ref in alive), None)


def _assess_without_workers(one: ExperimentSnapshot, queues: Queues) -> None:
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
    if all(status_of(job_ref, queue).alive is False for job_ref in one.worker_jobs):
        reason = "all workers of the search have ended; `detslurm e activate` submits new ones"
        one.facts.lost = dict.fromkeys(search.open_ids, reason)
        one.changed()
        for trial in list(one.trials):
            one.read_trial(trial)
        _record_lost(one.directory, {reason: search.open_ids})


def _assess_trials(
    one: ExperimentSnapshot, known: Mapping[int, JobRef], queue: QueueSnapshot, queues: Queues
) -> None:
    """Judge each unfinished trial; one whose job is dead is read again before it is believed.

    A paused trial that has not begun has nothing to lose: `activate` queues it, with a job or none.
    """
    if one.facts.is_unmanaged_script:
        return
    paused = one.facts.desired.paused
    waiting = {one.facts.trial_ids[index] for index in one.facts.unsubmitted}
    stops = one.facts.desired.stops
    resting = {
        row.id
        for row in one.trials.values()
        if paused and _has_not_begun(row) and not stops(row.id)
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
    or one that an administrator has requeued was faster."""
    others: dict[int, JobRef] = {}
    for trial, status in dead.items():
        view = one.read_trial(trial)
        ref = view.runs[-1].job.get("ref") if view.runs and view.state == "RUNNING" else None
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
    """Whether there is evidence that a trial's job has ended and will not return.

    For what the user has killed it is enough that the queue answers and knows no such job: nothing
    can be ended there, and no record of it will ever appear. But this may be another cluster, or
    another machine, that sees the same store: a runner that lives has the time to read the intent.
    """
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
    hint = f"; `detslurm e activate {one.directory.id}` queues it again"
    # Its end record or a successor may have been written since we read the trial.
    one.facts = fold_facts(one.directory)
    one.changed()
    now = one.job_refs
    lost: dict[str, list[int]] = {}
    for trial, status in dead.items():
        if now.get(trial) != status.job_ref:
            one.read_trial(trial)
            continue
        ran = one.trials[trial].state == "RUNNING"
        how = "; how its run ended is not recorded" if ran else ", before its run began"
        reason = f"{status.message}{how}"
        if not (one.facts.desired.stops(trial) or one.facts.is_unmanaged_script):
            reason += hint
        one.facts.lost[trial] = reason
        view = one.read_trial(trial)
        if view.state not in FINISHED or view.final:
            del one.facts.lost[trial]  # paused, or it has got its end record meanwhile
        else:
            lost.setdefault(reason, []).append(trial)
    _record_lost(one.directory, lost)
    return [reason for reason in lost if reason.endswith(hint)]


def _record_lost(directory: ExperimentDir, lost: Mapping[str, Sequence[int]]) -> None:
    # Slurm forgets within minutes: evidence of a death is kept as a fact.
    for reason, trials in lost.items():
        try:
            directory.append(Lost(trials=tuple(trials), reason=reason))
        except StoreError:
            return  # a reader without the right to write, or a full disk: it only shows it
