"""Experiments as they are now: the store's facts and one query of the queue, put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from detslurm._base.states import FINISHED, UNKNOWN
from detslurm.sdk.experiments import unmanaged
from detslurm.sdk.jobs.status import JobRef, JobStatus, QueueSnapshot, job_refs
from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    ExperimentRow,
    ExperimentView,
    FoldContext,
    Problem,
    Store,
    TrialDir,
    TrialRow,
    TrialView,
    experiment_view,
    fold_experiment,
    fold_facts,
    fs,
    view_trial,
)
from detslurm.store.reading import ReadCache, started_trials
from detslurm.store.trial_fold import trial_view

if TYPE_CHECKING:
    from detslurm.sdk.searches.view import SearchView
    from detslurm.slurm import JobInfo


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
    """One experiment, its trials, and the known state of their jobs."""

    directory: ExperimentDir
    facts: ExperimentFacts
    trials: dict[int, TrialRow]
    problems: tuple[Problem, ...] = ()
    job_statuses: dict[int, JobStatus] = field(default_factory=dict)
    known_runs: dict[int, int] = field(default_factory=dict)  # by trial, when the queue was asked
    queue_asked: float | None = None  # where the answer is older
    message: str | None = None
    heartbeats: unmanaged.Heartbeats = field(default_factory=dict)
    foreign_jobs: set[JobRef] = field(default_factory=set)  # other jobs under the ids of its own
    workers: Mapping[JobRef, JobInfo] = field(default_factory=dict)  # a search's, in the queue
    logs: dict[int, ReadCache] = field(default_factory=dict)  # the read part, by trial
    keeps_logs: bool = False  # also those of trials that are over
    _view: ExperimentView | None = None
    _refined: dict[int, TrialRow] = field(default_factory=dict)  # as the view shows a search's

    @property
    def folder_of_jobs(self) -> str:
        """The directory in which its jobs work: its records have another path after a move of the
        store, and a batch script of the user's own works anywhere."""
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
        self.facts.problems = (*self.problems, *search.problems)
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
        """Read new bytes of these trials, or of all that have not ended."""
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
        """Read the new part of the search's log, and the trials that it has moved: a waiting trial
        does not change until it moves."""
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
        """Whether its submission broke off before its first job, or is about to queue that. The two
        look alike in the store, so a message about the first must do no harm in the second."""
        facts = self.facts
        recorded = facts.jobs or facts.folder or facts.unsubmitted
        if recorded or not facts.created.managed or facts.desired.stopping or facts.desired.deleted:
            return False
        return not self.view.finished and not any(
            row.started is not None for row in self.trials.values()
        )

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
        context, cache = self.facts.context(trial), self.logs.setdefault(trial, {})
        view = self._back_in_queue(view_trial(self.directory.trial(trial), context, cache))
        if self.facts.searching:
            view = self._search.refine(view, paused=self.facts.desired.paused)
        if view.run_count or view.state == UNKNOWN or not self.facts.searching:
            self.trials[trial] = view.row()
            self.changed()
        if view.state in FINISHED and not self.keeps_logs:
            self.logs.pop(trial, None)  # never read again: thousands of logs need no memory
        return view

    def waiting_views(self) -> dict[int, TrialView]:
        """The views of trials that have not begun, by id, from listings alone; None where these are
        few, because then each is looked up by its name."""
        new = [row.id for row in self.trials.values() if has_not_begun(row)]
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
        if status.job_ref is None or newest.job.ref != status.job_ref.ref:
            return view
        state = "PAUSED" if self.facts.desired.paused else "QUEUED"
        return msgspec.structs.replace(view, state=state)

    def reread_waiting(self) -> None:
        """Read those again that are running in the store's view although their jobs are pending."""
        for trial, status in self.job_statuses.items():
            known = self.trials.get(trial)
            if status.waits and known is not None and known.state == "RUNNING":
                self.read_trial(trial)


def has_not_begun(row: TrialRow) -> bool:
    """Whether it waits for its first run, or is paused before it."""
    return not row.run_count and row.state in ("QUEUED", "PAUSED")


def read(directory: ExperimentDir, *, keeps_logs: bool = False) -> ExperimentSnapshot:
    """An experiment by the store alone; with `keeps_logs` no part of a log is read again later."""
    logs: dict[int, ReadCache] = {}

    def fold(trial: TrialDir, context: FoldContext) -> TrialView:
        return view_trial(trial, context, logs.setdefault(trial.id, {}) if keeps_logs else None)

    facts = fold_facts(directory)
    view = fold_experiment(directory, facts, fold=fold)
    trials = {row.id: row for row in view.trials}
    found = ExperimentSnapshot(
        directory, facts, trials, view.problems, logs=logs, keeps_logs=keeps_logs
    )
    if not facts.searching:
        found._view = view
        return found
    found.search  # noqa: B018 (raises here what can't be read of it)
    return found
