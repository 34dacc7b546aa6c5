"""The folds that turn an experiment's facts and trials into its desired state and a view. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from detslurm._base.states import CANCELED, ERROR, FINISHED, TERMINAL
from detslurm.store.checkpoint_fold import CheckpointFact, CheckpointFacts
from detslurm.store.energy import Energy
from detslurm.store.errors import NewerFormat, Problem, RecordMissing
from detslurm.store.facts import format_of, is_newer
from detslurm.store.metric_rank import first_best
from detslurm.store.records import (
    AddingWorkers,
    Corrupt,
    Created,
    Deferred,
    Fact,
    Found,
    Idle,
    Intent,
    Job,
    Lost,
    NodeFailed,
    Resubmitting,
    Script,
    SearchEnded,
    Sending,
    Set,
    Submitted,
    Trials,
    typed,
)
from detslurm.store.trial_fold import FoldContext
from detslurm.store.views import UNCATEGORIZED, DesiredState, ExperimentView, TrialRow


class ExperimentFacts(msgspec.Struct, kw_only=True):
    """The fold of an experiment's facts, trials aside; `count` is the last fact's number.

    `origin` leads from the index of a replacement (of a trial with invalid hyperparameters) to that
    of the trial whose job runs it, `replaced` from the index of each trial to its replacement's.
    `adopted` names the job that took over a trial (by index) from one that died.
    `promise` is the number of an announcement of more jobs that no submission has followed.
    `deferral` is why no job was submitted for the trials in `deferred` (by index); `sending` has,
    by their numbers, the announcements to submit some of them that no submission has followed.
    `resubmitting` is the announcement of new jobs for lost trials that has no end yet.
    `node_failures` has, by node, the runs (with the trial's id) and the jobs (refs) that failed
    there at once; new jobs avoid the nodes in `excluded`. `failed_runs` are those and others that
    failed at once, whatever is to blame.
    `closed` has how a search closed its trials (by id) and is None until the search is over.
    `format` is the newest of its facts, and of the rules by which it decides.
    `lost_fact` is the path of the first fact whose file was lost, empty where none was.
    """

    created: Created = Created()
    count: int = 0
    format: int = 1
    desired: DesiredState = DesiredState()
    jobs: tuple[Job, ...] = ()
    submission_times: dict[str, float] = msgspec.field(default_factory=dict)  # by the job's id
    folder: str = ""  # in which its jobs work: other jobs may come to have their ids
    trial_ids: list[int] = msgspec.field(default_factory=list)
    lost: dict[int, str] = msgspec.field(default_factory=dict)
    idle: dict[int, Idle] = msgspec.field(default_factory=dict)  # the newest of each trial
    origin: dict[int, int] = msgspec.field(default_factory=dict)
    replaced: dict[int, int] = msgspec.field(default_factory=dict)
    adopted: dict[int, str] = msgspec.field(default_factory=dict)
    promise: int = 0
    deferral: Deferred | None = None
    deferred: set[int] = msgspec.field(default_factory=set)
    sending: dict[int, Sending] = msgspec.field(default_factory=dict)
    resubmitting: Resubmitting | None = None
    node_failures: dict[str, set[tuple[int, int] | str]] = msgspec.field(default_factory=dict)
    excluded: set[str] = msgspec.field(default_factory=set)
    failed_runs: set[tuple[int, int]] = msgspec.field(default_factory=set)
    closed: dict[int, str] | None = None
    verdict: str | None = None
    rule: str | None = None  # of `searcher.stop` that ended the search
    checkpoints: CheckpointFacts = msgspec.field(default_factory=CheckpointFacts)
    problems: tuple[Problem, ...] = ()
    lost_fact: str = ""

    def fold(self, facts: Iterable[Mapping[str, Any]]) -> Self:
        """Take in the next facts, which come in the order of their numbers; returns itself."""
        for plain in facts:
            self.count = plain["n"]
            self.format = max(self.format, format_of(plain))
            fact = typed(plain)
            if fact is not None:  # what a newer version wrote is skipped
                self._apply(fact)
        return self

    def _apply(self, fact: Fact) -> None:
        match fact:
            case Created() if not self.created.n:
                self.created = fact
                self._check_format(fact)
                self._add_trials(fact.first_trial, fact.trials)
            case Trials():
                self._add_trials(fact.first_trial, fact.trials, fact.replaces)
            case Submitted():
                self._submitted(fact)
            case Deferred():
                self._deferred(fact)
            case Sending():
                self.deferred -= {*fact.indices}
                self.sending[fact.n] = fact
            case Resubmitting():
                self.resubmitting = fact if fact.parts else None
                self.promise = fact.n if fact.parts else self.promise
            case AddingWorkers():
                self.promise = fact.n
            case Script():
                self.folder = fact.folder or ""
            case Intent():
                self._intent(fact)
            case Set():
                self.desired = self.desired.with_field(fact.field, fact.value)
            case Lost():
                reason = fact.reason or "its job is gone and has no end record"
                self.lost |= dict.fromkeys(fact.trials, reason)
            case Found():
                for trial in list(self.lost) if self.created.search else fact.trials:
                    self.lost.pop(trial, None)
            case Idle():
                self.idle[fact.trial] = fact
            case NodeFailed():
                self.failed_runs.update(fact.runs)
                if fact.suspected:
                    return
                self.node_failures.setdefault(fact.node, set()).update(fact.runs, fact.jobs)
                self.excluded |= {fact.node} if fact.excluded else set()
            case SearchEnded() if self.closed is None:
                self.closed = {trial: str(how) for trial, how in fact.closed.items()}
                self.verdict, self.rule = fact.verdict, fact.reason
                del self.trial_ids[fact.created :]
            case Corrupt():
                self.problems += (Problem(fact.path, 0, fact.problem),)
                self.lost_fact = self.lost_fact or fact.path * fact.missing
            case _ if isinstance(fact, CheckpointFact):
                self.checkpoints.apply(fact)

    def _check_format(self, fact: Created) -> None:
        if is_newer(fact.format):  # nothing is deleted where there are problems
            path = f"facts/{fact.n:06d}.json"
            self.problems += (Problem(path, 0, NewerFormat(path, fact.format).problem),)

    def _add_trials(self, first: int, count: int, replaces: int | None = None) -> None:
        if replaces is not None:
            new = len(self.trial_ids)
            self.origin[new] = self.origin.get(replaces, replaces)
            self.replaced.setdefault(replaces, new)
        self.trial_ids += range(first, first + count)

    def _deferred(self, fact: Deferred) -> None:
        """Not sent, or not any more: who was about to do it has failed."""
        indices = {*range(fact.first_index, fact.first_index + fact.count)}
        self.deferral = fact
        self.deferred |= indices
        self._sent(indices)
        for trial in {self.trial_ids[i] for i in indices if i < len(self.trial_ids)}:
            self.lost.pop(trial, None)  # it waits for another job

    def _sent(self, indices: Collection[int]) -> None:
        still = ((n, one) for n, one in self.sending.items() if one.first_index not in indices)
        self.sending = dict(still)

    def _submitted(self, fact: Submitted) -> None:
        request = fact.request or {}
        of_all: dict[str, Any] = {"fact": fact.n, "dependency": request.get("dependency")}
        jobs = tuple(msgspec.structs.replace(job, **of_all) for job in fact.jobs)
        self.jobs += jobs
        if fact.time is not None:
            self.submission_times |= {job.job_id: fact.time for job in jobs}
        self.folder = request.get("folder") or self.folder
        self.promise = 0
        for job in jobs if self.deferral is not None else ():
            self.deferred.difference_update(job.indices)
            self._sent(job.indices)
        for job in jobs:
            again = {i: ref for i, ref in self.adopted.items() if i not in job.indices}
            self.adopted = again | (dict.fromkeys(job.indices, job.job_id) if job.adopted else {})
        # A new submission gives lost trials another chance; a search's workers take any trial.
        if self.created.search:
            self.lost.clear()
        for trial in set().union(*map(self.trials_of, jobs)) if self.lost else ():
            self.lost.pop(trial, None)

    def _intent(self, fact: Intent) -> None:
        if fact.intent == "activate" and self.created.search:
            self.lost.clear()  # its trials go to whatever workers there are from now on
        self.desired = self.desired.after(fact)
        self.checkpoints.closed |= self.desired.deleted

    def trial_id(self, index: int) -> int:
        """The id of the trial with this index, counted from 0.

        Raises `RecordMissing` where a lost fact may have given ids before it.
        """
        if index >= self.created.trials:
            self.refuse_gap(f"it may name the trial with index {index}")
        return self.trial_ids[index]

    def refuse_gap(self, consequence: str) -> None:
        """Raise `RecordMissing` with this consequence where a fact was lost."""
        if self.lost_fact:
            raise RecordMissing(self.lost_fact, consequence)

    @property
    def searching(self) -> bool:
        """Whether a search decides, as results come in, which trials there will be."""
        return self.created.search and self.closed is None and not self.desired.deleted

    @property
    def planned_trials(self) -> int:
        """How many trials there will be if all goes well; 0 where a custom search decides that."""
        return 0 if self.created.runner else self.created.trials

    @property
    def cluster(self) -> str:
        """Where its jobs are: in Slurm if nothing else is recorded."""
        return self.created.cluster or "slurm"

    @property
    def is_unmanaged_script(self) -> bool:
        """Whether it records a script that ran outside of jobs."""
        return not self.created.managed and self.created.cluster is None

    @property
    def unsubmitted(self) -> set[int]:
        """The indices of trials for which no job was recorded because there was no room."""
        return self.deferred.union(*(one.indices for one in self.sending.values()))

    @property
    def submission(self) -> str:
        """How much of it was submitted, and which limit is the reason; empty where all was."""
        left = len(self.unsubmitted)
        if not left or self.deferral is None:
            return ""
        limit = f" (limit {self.deferral.limit})" if self.deferral.limit else ""
        return f"{len(self.trial_ids) - left} of {len(self.trial_ids)} submitted{limit}"

    @property
    def elements(self) -> int:
        """How many jobs may work at once, each element of an array one of them.

        A job that is submitted for a trial with a job before takes the place of that job.
        """
        found, covered = 0, set[int]()
        for job in self.jobs:
            if not job.adopted:
                found += sum(share not in covered for share in job.indices[:: job.each])
            covered.update(job.indices)
        return found

    @property
    def trials_at_once(self) -> int | None:
        """How many trials `max_slots` allows at once, as it was set last; None for any number."""
        most = self.desired.fields.get("max_slots", self.created.max_slots)
        if not isinstance(most, int):  # or whatever else was stored
            return None
        return max(most // max(self.created.slots or 0, 1), 1)

    @property
    def budget(self) -> float | None:
        """The slot-hours that it may use, as they were set last; None for any number."""
        hours = self.desired.fields.get("budget", self.created.budget)
        return float(hours) if isinstance(hours, int | float) else None  # or whatever was stored

    @property
    def worker_limit(self) -> int:
        """How many workers a search may have at once."""
        at_once = self.trials_at_once
        return self.created.workers if at_once is None else min(self.created.workers, at_once)

    @property
    def failing_nodes(self) -> dict[str, int]:
        """How many runs and jobs failed at once, by node: not of trials that fail everywhere."""
        counts = {
            node: sum(isinstance(f, str) or len(self.nodes_failed_by(f[0])) == 1 for f in failed)
            for node, failed in self.node_failures.items()
        }
        return {node: count for node, count in counts.items() if count}

    def nodes_failed_by(self, trial_id: int) -> set[str]:
        """The nodes on which runs of a trial failed at once."""
        pairs = self.node_failures.items()
        return {node for node, failed in pairs if any(trial_id == f[0] for f in failed)}

    def submitted_after(self, number: int) -> set[int]:
        """Trials that facts past `number` submitted (again)."""
        return set().union(*(self.trials_of(job) for job in self.jobs if job.fact > number))

    def trials_of(self, job: Job) -> set[int]:
        """The trials that a job works for, with what replaces them."""
        share = job.indices
        more = {self.trial_ids[new] for new, first in self.origin.items() if first in share}
        return {*self.trial_ids[share.start : share.stop], *more}

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that were set last, else those of the configuration."""
        return _labels(self.desired.fields.get("labels", self.created.labels))

    def context(self, trial_id: int) -> FoldContext:
        """The input of the fold of one of its trials."""
        return FoldContext(
            metric=self.created.metric,
            smaller_is_better=self.created.smaller_is_better,
            objectives=self.created.objectives,
            desired=self.desired,
            checkpoints=self.checkpoints,
            lost=self.lost.get(trial_id),
            closed=(self.closed or {}).get(trial_id),
            length=None if self.searching else self.created.length,
        )


def experiment_view(
    experiment_id: int, facts: ExperimentFacts, trials: Sequence[TrialRow]
) -> ExperimentView:
    """The view of an experiment whose trials come in the order of their ids."""
    created, desired, fields = facts.created, facts.desired, facts.desired.fields
    state = experiment_state(
        desired,
        [trial.state for trial in trials],
        searching=facts.searching,
        verdict=facts.verdict if facts.searching or not _all_refused(trials) else ERROR,
        abandoned=bool(facts.lost),
        interrupted=any(trial.interrupted for trial in trials),
    )
    workspace, project = _folder(fields.get("folder"), created)
    best = _best_trial(trials, created)
    done = state in FINISHED
    ends = (trial.ended for trial in trials if trial.ended is not None)
    known = len(trials if facts.searching else facts.trial_ids)
    planned = max(known, facts.planned_trials)
    return ExperimentView(
        id=experiment_id,
        format=facts.format,
        name=_line(fields.get("name", created.name)),
        owner=created.owner or created.by or "",
        state=state,
        pause_reason=desired.pause_reason if state == "PAUSED" else None,
        end_reason=_end_reason(facts, trials) if state == "ERROR" else facts.rule,
        progress=1.0 if state == "COMPLETED" else _progress(trials, planned, ended=done),
        created=created.time,
        started=min((t.started for t in trials if t.started is not None), default=None),
        ended=max(ends, default=desired.stopped) if done else None,
        pool=fields.get("resource_pool", created.pool),
        slots=created.slots,
        trial_count=known if done else planned,
        trial_states=dict(Counter(trial.state for trial in trials)),
        description=_text(fields.get("description", created.description)),
        labels=facts.labels,
        notes=_text(fields.get("notes", created.notes)),
        archived=desired.archived,
        submission="" if done else facts.submission,
        metric=created.metric,
        smaller_is_better=created.smaller_is_better,
        objectives=created.objectives,
        best_trial=best.id if best else None,
        best_value=_best_value(best) if best else None,
        cluster=created.cluster,
        parent=created.parent,
        origin=created.origin,
        workspace=workspace,
        project=project,
        task=created.task,
        exit_code=trials[0].exit_code if created.task and done and trials else None,
        run_seconds=_sum(trial.run_seconds for trial in trials),
        productive_seconds=_sum(trial.productive_seconds for trial in trials),
        wall_seconds=_sum(trial.wall_seconds for trial in trials),
        energy=Energy.sum(trial.energy for trial in trials if trial.run_count),
        failing_nodes=facts.failing_nodes,
        excluded_nodes=tuple(sorted(facts.excluded)),
        fact_count=facts.count,
        first_trial=created.first_trial,
        desired=desired,
        jobs=facts.jobs,
        trials=tuple(trials),
        problems=facts.problems,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 2) if known else None


def _end_reason(facts: ExperimentFacts, trials: Sequence[TrialRow]) -> str | None:
    """Why the first trial failed; a trial with its own end record comes first."""
    failed = sorted((t for t in trials if t.state == "ERROR"), key=lambda trial: not trial.final)
    reasons = [trial.end_reason for trial in failed if trial.end_reason]
    return next(iter([*reasons, *facts.lost.values()]), None)


def _text(value: Any, also: str = "\n\t") -> str:
    """Text as it may be shown, whatever was stored: no terminal obeys it."""
    text = "" if value is None else str(value)
    return "".join(char if char.isprintable() or char in also else "?" for char in text)


def _line(value: Any) -> str:
    return _text(value, also="")


def _folder(moved: Any, created: Created) -> tuple[str, str]:
    """Workspace and project: one fact moves both, so that no reader sees half of a move."""
    given = (created.workspace, created.project)
    if isinstance(moved, (list, tuple)) and len(moved) == 2:
        given = (moved[0], moved[1])
    return _line(given[0]) or UNCATEGORIZED, _line(given[1]) or UNCATEGORIZED


def _labels(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, (list, tuple)) else [value]
    return tuple(label for item in found if (label := _line(item)))


def _all_refused(trials: Sequence[TrialRow]) -> bool:
    """Whether a search found no sample that its code accepts."""
    return len(trials) > 1 and all(trial.invalid for trial in trials)


def experiment_state(
    desired: DesiredState,
    trial_states: Sequence[str],
    *,
    searching: bool = False,
    verdict: str | None = None,
    abandoned: bool = False,
    interrupted: bool = False,
) -> str:
    """The experiment's state: final once every trial is, else what the user wants.

    While a search goes on more trials may come, unless the user stops it or it is `abandoned`: all
    its workers are gone. `verdict` is its own word for how it ended. `interrupted`: trials are in
    ERROR by no fault of their code, so an experiment that lacks them is not complete.
    """
    if desired.deleted:
        return "DELETED"
    over = all(state in FINISHED for state in trial_states)
    if searching and over and desired.stopping is not None:
        return "CANCELED"
    if searching and over and abandoned:
        return "ERROR"
    if verdict in (ERROR, CANCELED):
        return TERMINAL[verdict]
    if trial_states and over and not searching:
        state = _final_state(desired, set(trial_states))
        return "ERROR" if interrupted and state == "COMPLETED" else state
    if desired.stopping is not None:
        return "STOPPING_KILLED" if desired.stopping == "kill" else "STOPPING_CANCELED"
    return "PAUSED" if desired.paused else "ACTIVE"


def _final_state(desired: DesiredState, states: set[str]) -> str:
    if desired.stopping is not None and "CANCELED" in states:
        return "CANCELED"
    if "COMPLETED" in states:
        return "COMPLETED"
    return "ERROR" if "ERROR" in states else "CANCELED"


def _best_trial(trials: Sequence[TrialRow], created: Created) -> TrialRow | None:
    if created.objectives is None:
        return first_best(trials, _best_value, created.smaller_is_better)
    rated = ((one.best_validation, one) for one in trials if one.best_validation is not None)
    return created.objectives.comparison().best((best.metrics, one) for best, one in rated)


def _best_value(trial: TrialRow) -> float | None:
    return trial.best_validation.value if trial.best_validation else None


def _progress(trials: Sequence[TrialRow], planned: int, *, ended: bool) -> float:
    """The finished part of the planned trials; once all has ended, killed trials count as far as
    they came."""
    whole = {"COMPLETED"} if ended else FINISHED
    return sum(1.0 if t.state in whole else t.progress for t in trials) / max(planned, 1)
