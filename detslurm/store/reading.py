"""From files to views: gather an experiment's or a trial's facts, then fold them."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detslurm._base.states import UNKNOWN
from detslurm.store import fs, log_lines
from detslurm.store.curve import MetricRow, clean_rows, last_valid_steps
from detslurm.store.errors import CorruptRecord, Problem, StoreFault
from detslurm.store.experiment import BUCKETS, ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts, experiment_view
from detslurm.store.frame import unframe_all
from detslurm.store.run_log import lines_of
from detslurm.store.run_records import StartRecord, well_formed
from detslurm.store.trial import Run, RunLogFile, TrialDir, with_history
from detslurm.store.trial_fold import (
    FoldContext,
    RunFacts,
    first_steps,
    trial_view,
)
from detslurm.store.views import CheckpointView, ExperimentView, TrialRow, TrialView

if TYPE_CHECKING:
    from detslurm.store.store import Store

MALFORMED: Final = "malformed record"


class PartialLog(msgspec.Struct):
    """A rank's log of a run up to byte `end`; of metrics outside validations only the
    steps."""

    start: StartRecord = StartRecord()  # the run's claim: whose log it is
    end: int = 0
    records: list[dict[str, Any]] = []
    training: array[int] = msgspec.field(default_factory=lambda: array("q"))
    other: array[int] = msgspec.field(default_factory=lambda: array("q"))
    problems: list[Problem] = []
    time: float | None = None  # of its last record

    def read_new(self, name: str, limit: int | None) -> list[Problem]:
        """Take in new bytes; returns those that may be whole the next time."""
        torn: list[Problem] = []
        for offset, line in lines_of(name, limit, self.end, torn):
            self.end = offset + len(line) + 1
            try:
                self._take(name, offset, line)
            except (CorruptRecord, OverflowError, RecursionError) as error:
                self.problems.append(Problem(name, offset, str(error)))
        return torn

    def _take(self, name: str, offset: int, line: bytes) -> None:
        found = log_lines.line_facts(line)
        self.training.extend(found.training)
        self.other.extend(found.other)
        self.records += found.records
        self.time = found.time or self.time
        if found.malformed:
            self.problems.append(Problem(name, offset, MALFORMED))


ReadCache = dict[tuple[int, int], PartialLog]
"""The logs of a trial's runs, by run and rank: a second reading takes only new bytes."""


def read_runs(trial: TrialDir, runs: Sequence[Run], cache: ReadCache) -> list[RunFacts]:
    """Read a trial's runs, or read on where they were read before."""
    files = trial.log_files(runs)
    return [_run_facts(run, files[run.number], cache) for run in runs]


def _run_facts(run: Run, files: Sequence[RunLogFile], cache: ReadCache) -> RunFacts:
    torn: list[Problem] = []
    logs = [_read_log(run, file, cache, torn) for file in files]
    problems = [*(problem for log in logs for problem in log.problems), *torn]
    facts = RunFacts(number=run.number, start=run.start, end=run.end, problems=problems)
    if len(logs) == 1:  # as a rule: nothing is copied
        (log,) = logs
        facts.records, facts.last_time = log.records, log.time
        facts.training_steps, facts.other_steps = log.training, log.other
        return facts
    facts.records = [record for log in logs for record in log.records]
    facts.training_steps = [step for log in logs for step in log.training]
    facts.other_steps = [step for log in logs for step in log.other]
    facts.last_time = max((log.time for log in logs if log.time is not None), default=None)
    return facts


def _read_log(run: Run, file: RunLogFile, cache: ReadCache, torn: list[Problem]) -> PartialLog:
    key = (file.run, file.rank)
    log = cache.get(key)
    # A later run may have cut it off, and where a file server got the last bytes first, it shows
    # zeros for a moment.
    cut = log is not None and file.limit is not None and file.limit < log.end
    if log is None or log.problems or cut or log.start != run.start:
        log = cache[key] = PartialLog(run.start)
    torn += log.read_new(file.path, file.limit)
    return log


def fold_trial(
    trial: TrialDir, context: FoldContext | None = None, cache: ReadCache | None = None
) -> TrialView:
    """A trial as its files show it; without a context neither intents nor the metric are known."""
    runs = with_history(trial.runs())
    read = read_runs(trial, runs, {} if cache is None else cache)
    return trial_view(trial.id, trial.experiment_id, read, context or FoldContext())


def started_checkpoints(trial: TrialDir, runs: int) -> dict[str, dict[str, Any] | None]:
    """All checkpoints that runs 1..`runs` began to save, also where later runs don't count them,
    and where each is; None for the configured storage."""
    begun: dict[str, dict[str, Any] | None] = {}
    for number in range(1, runs + 1):
        begun |= started_in_run(trial, number)
    return begun


def started_in_run(trial: TrialDir, number: int) -> dict[str, dict[str, Any] | None]:
    """As `started_checkpoints`, of one run."""
    return {record["uuid"]: record.get("storage") for record in _checkpoint_records(trial, number)}


def outputs_of(runs: Sequence[Run]) -> dict[str, dict[str, Any] | None]:
    """The directories of outputs that runs claimed, and where each is, as `started_checkpoints`."""
    claims = (run.start.outputs for run in runs)
    return {claim.uuid: claim.storage for claim in claims if claim is not None}


def checkpoint_digests(trial: TrialDir, storage_id: str) -> dict[str, str] | None:
    """The digests of a checkpoint's files; None if the trial has not committed it."""
    for run in reversed(trial.runs()):
        for record in _checkpoint_records(trial, run.number):
            if record["uuid"] == storage_id and record["t"] == "checkpoint":
                return record.get("digests") or {}
    return None


def _checkpoint_records(trial: TrialDir, number: int) -> Iterator[dict[str, Any]]:
    for _, line in lines_of(str(trial.records_path(number)), None, 0, []):
        if b'"checkpoint' not in line:
            continue
        try:
            records = unframe_all(line)
        except CorruptRecord:
            continue  # `read_runs` reports broken records
        for record in records:
            if record.get("t") in ("checkpoint_started", "checkpoint") and well_formed(record):
                yield record


def view_trial(
    trial: TrialDir, context: FoldContext | None = None, cache: ReadCache | None = None
) -> TrialView:
    """As `fold_trial`, to be shown: UNKNOWN where a file can't be read, with the reason.

    A caller that acts on a trial must not take an unreadable record for a missing record.
    """
    try:
        return fold_trial(trial, context, cache)
    except StoreFault as fault:
        reason = os.strerror(fault.errno or 0)
        return TrialView(
            id=trial.id,
            experiment_id=trial.experiment_id,
            state=UNKNOWN,
            problems=(Problem(fault.path, 0, reason),),
        )


def latest_checkpoint(store: Store, trial_id: int) -> CheckpointView | None:
    """The checkpoint of a warm start from a trial. Raises NotFound where there is no such trial."""
    return latest_of(store.find_trial(trial_id))


def latest_of(trial: TrialDir) -> CheckpointView | None:
    """The checkpoint that a run of this trial goes on from, by the facts of its experiment."""
    facts = fold_facts(ExperimentDir.at(trial.experiment_path))
    return fold_trial(trial, facts.context(trial.id)).latest_checkpoint


def trial_metrics(trial: TrialDir, group: str | None = None) -> list[MetricRow]:
    """The trial's metrics on the clean curve, by step; one group's, or all."""
    if fs.exists(trial.metrics_path):
        from detslurm.store.compacted import Compacted  # h5py is slow to import

        with Compacted.of(trial) as compacted:
            if compacted is not None:
                return compacted.rows(group)
    return logged_metrics(trial, group)


def logged_metrics(
    trial: TrialDir, group: str | None = None, *, known: Sequence[Run] | None = None
) -> list[MetricRow]:
    """As `trial_metrics`, from the logs alone: of all runs, or of those that are known."""
    runs = with_history(trial.runs() if known is None else known)
    files = trial.log_files(runs)
    rows: list[MetricRow] = []
    spans = []
    # Often there is only one run; where another group could end it, all groups are read.
    wanted = group if len(runs) == 1 else None
    for run in runs:
        first = first_steps(run.start)
        reported = run_rows(files[run.number], wanted)
        if wanted is None:
            first.take_rows(reported)
        rows += reported if group == wanted else [row for row in reported if row.group == group]
        spans.append(first.span(run.number))
    return clean_rows(rows, last_valid_steps(spans))


def run_rows(files: Sequence[RunLogFile], group: str | None = None) -> list[MetricRow]:
    """The metrics that one run reported, of all groups or of one: those of each rank in the order
    of reporting."""
    rows: list[MetricRow] = []
    for some in rows_by_line(files, group):
        rows += some
    return rows


def rows_by_line(
    files: Sequence[RunLogFile], group: str | None = None
) -> Iterator[list[MetricRow]]:
    """As `run_rows`, a line of a log at a time: twice as fast for callers that keep no rows."""
    for file in files:
        for _, line in lines_of(file.path, file.limit, 0, []):
            with suppress(CorruptRecord):  # `read_runs` reports broken records
                yield log_lines.line_rows(line, file.run, group)


def fold_facts(experiment: ExperimentDir) -> ExperimentFacts:
    """The experiment's own facts folded, its trials unread; NotFound where it does not exist."""
    facts = ExperimentFacts().fold(experiment.facts())
    if not facts.count or facts.lost_fact == experiment.log.path_text(1):
        raise experiment.never_created()
    return facts


def fold_experiment(
    experiment: ExperimentDir,
    facts: ExperimentFacts | None = None,
    *,
    fold: Callable[[TrialDir, FoldContext], TrialView] = fold_trial,
) -> ExperimentView:
    """An experiment as its files show it; `facts` are its own ones where they were read already.

    `fold` reads a trial: `view_trial` for those who only show it.

    Trials that are over come from the summary, which is written again where that pays.
    """
    from detslurm.store import summary  # only here: a thousand runners start without it

    facts = fold_facts(experiment) if facts is None else facts
    known = summary.load(experiment)
    rows = known.valid_rows(facts)
    cached, problems = len(rows), list(facts.problems)

    def read(trial_ids: Iterable[int]) -> None:
        for trial_id in trial_ids:
            view = fold(experiment.trial(trial_id), facts.context(trial_id))
            rows[trial_id] = view.row()
            problems.extend(view.problems)

    unread = [trial_id for trial_id in facts.trial_ids if trial_id not in rows]
    started = started_trials(experiment, facts, len(unread))
    unseen = [] if started is None else [number for number in unread if number not in started]
    for number in unseen:
        rows[number] = trial_view(number, experiment.id, (), facts.context(number)).row()
    read(number for number in unread if number not in rows)
    result = _assembled(experiment, facts, rows, problems)
    if unseen and result.finished and not (known.final and known.facts == facts.count):
        read(unseen)  # nothing is over for good by a listing, which may miss a trial that runs
        result = _assembled(experiment, facts, rows, problems)
    summary.keep(experiment, result, cached, known)
    return result


def _assembled(
    experiment: ExperimentDir,
    facts: ExperimentFacts,
    rows: Mapping[int, TrialRow],
    problems: Iterable[Problem],
) -> ExperimentView:
    facts.problems = tuple(problems)
    listed = [rows[t] for t in facts.trial_ids]
    if facts.searching:  # ids are kept ready for trials that the search may never create
        listed = [row for row in listed if row.run_count]
    return experiment_view(experiment.id, facts, listed)


def started_trials(
    experiment: ExperimentDir, facts: ExperimentFacts, unread: int
) -> set[int] | None:
    """Trials with a directory, by listing, where asking for each by name would cost much more.

    A listing may be a minute old, which is fine for a view of what goes on: a trial shows as queued
    that long.
    """
    if unread <= 2 * BUCKETS:
        return None
    buckets = {trial_id % BUCKETS for trial_id in facts.trial_ids}
    folder = experiment.path / "trials"
    names = (name for bucket in buckets for name in fs.names_in(folder / f"{bucket:02d}"))
    return {int(name) for name in names if name.isdigit()}


def started_ids(experiment: ExperimentDir, facts: ExperimentFacts) -> list[int]:
    """All trials of which something may be on disk; as `started_trials`."""
    started = started_trials(experiment, facts, len(facts.trial_ids))
    return [n for n in facts.trial_ids if started is None or n in started]
