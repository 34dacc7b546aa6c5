"""The fold that turns a trial's facts into its view. Pure: no disk, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from detslurm._base.states import (
    ERROR,
    INVALID_HP,
    KILLED_BY_SIGNAL,
    LOST,
    OUT_OF_OPS,
    RESTART,
    TERMINAL,
    TIME_LIMIT,
    spares_restart,
)
from detslurm.store.checkpoint_fold import DELETED, CheckpointFacts
from detslurm.store.curve import (
    TRAINING,
    VALIDATION,
    FirstSteps,
    MetricRow,
    Span,
    as_float,
    clean_rows,
    last_valid_steps,
)
from detslurm.store.errors import TORN, Problem
from detslurm.store.metric_rank import first_best
from detslurm.store.objectives import SeveralObjectives
from detslurm.store.run_records import EndRecord, OutputsLeft, StartRecord
from detslurm.store.run_usage import energy_of, parse_usage
from detslurm.store.time_parts import Interval
from detslurm.store.trial import HISTORY
from detslurm.store.trial_time import TimedRun, recorded_intervals, training_time
from detslurm.store.views import (
    AlertView,
    CheckpointView,
    DesiredState,
    RunView,
    TrialView,
    ValidationView,
)

OUTPUTS = "outputs"
"""The kind of checkpoint that is the contents of a trial's directory of outputs."""

BATCH_OUTPUTS = "batch outputs"
"""The kind that is the files which the trial's checkpoints have committed."""


class RunFacts(msgspec.Struct, kw_only=True):
    """One run as read: claim, end record, and its records up to where later runs cut it off.

    Of metrics outside the validation group a view needs no more than their steps: those of
    training, and those of all other groups.
    """

    number: int
    start: StartRecord = StartRecord()
    end: EndRecord | None = None
    records: Sequence[dict[str, Any]] = ()
    training_steps: Sequence[int] = ()
    other_steps: Sequence[int] = ()
    last_time: float | None = None
    problems: Sequence[Problem] = ()

    @property
    def resumed(self) -> int:
        """The step that the run resumed at, 0 from scratch."""
        return self.start.resumed.steps

    def trained(self, *, others: bool) -> Sequence[int]:
        """The steps that training and validation reported, or those of other groups."""
        own = (record["steps"] for record in _of_kind(self, "metrics"))
        return self.other_steps if others else [*self.training_steps, *own]

    @property
    def span(self) -> Span:
        """The part of this run that decides about earlier runs."""
        first = first_steps(self.start)
        first.take(TRAINING, self.training_steps)
        first.take(VALIDATION, [r["steps"] for r in self.records if r.get("t") == "metrics"])
        first.take("other", self.other_steps)
        return first.span(self.number)


def first_steps(start: StartRecord) -> FirstSteps:
    """Where a run began, by its claim, before it has reported anything."""
    return FirstSteps(start.resumed.steps or math.inf)


class FoldContext(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an experiment that a trial's fold needs.

    `lost` is why its job is known to be gone for good, `closed` how its search closed it, once
    that is over. `length` is what it is to train, in the configuration's unit.
    """

    metric: str | None = None
    smaller_is_better: bool = True
    objectives: SeveralObjectives | None = None
    desired: DesiredState = DesiredState()
    checkpoints: CheckpointFacts = msgspec.field(default_factory=CheckpointFacts)
    lost: str | None = None
    closed: str | None = None
    length: int | None = None

    @property
    def is_lost(self) -> bool:
        """Whether a run without an end record has ended: its job is gone, or so its search has
        closed the trial."""
        return self.lost is not None or self.closed == ERROR


def trial_view(
    trial_id: int, experiment_id: int, logs: Sequence[RunFacts], context: FoldContext
) -> TrialView:
    """The view of a trial whose runs come in ascending order, after its history if it has any."""
    runs = [log for log in logs if log.number != HISTORY]
    last = end_record(runs)
    state, reason = _state(trial_id, runs, last, context)
    limits = last_valid_steps([log.span for log in logs])
    validations = clean_validations(logs, limits, context.metric)
    measured = _measured(logs, limits, validations)
    checkpoints = _checkpoints(trial_id, runs, context.checkpoints, measured)
    checkpoints += _outputs(trial_id, runs, context)
    checkpoints += _batch_outputs(trial_id, runs, context)
    final = last is not None or context.closed is not None
    finished = final or state in ("ERROR", "CANCELED")
    newest = runs[-1] if runs else RunFacts(number=0)
    # Other groups may count something else: theirs are the steps of code that reports no others.
    others = not any(log.trained(others=False) for log in logs)
    shown = [_run_view(run, others) for run in runs]
    if shown and last is None and newest.end is None and context.is_lost:
        lost_end = EndRecord(outcome=LOST, reason=context.lost)  # as it would be
        shown[-1] = _run_view(msgspec.structs.replace(newest, end=lost_end), others)
    steps = _steps(logs, limits, validations, checkpoints, others)
    known = (run.start for run in reversed(runs) if run.start.hparams is not None)
    drawn = next(known, None)
    continued = None if drawn is None else drawn.continued
    spent = {run.number: tuple(recorded_intervals(run.records)) for run in runs}
    return TrialView(
        id=trial_id,
        experiment_id=experiment_id,
        state=state,
        final=final,
        hparams=None if drawn is None else drawn.hparams,
        seed=None if drawn is None else drawn.seed,
        continues=None if continued is None else continued.trial,
        started=next((run.start.time for run in runs if run.start.time is not None), None),
        ended=_end_time(shown, last) if finished else None,
        run_count=len(runs),
        restarts=sum(map(_used_restart, runs, [None, *runs])),
        steps=steps,
        progress=1.0 if state == "COMPLETED" else _progress(runs, steps, context.length),
        status=_latest(runs, "status", "text"),
        end_reason=reason,
        invalid=last is not None and last.outcome == INVALID_HP,
        interrupted=state == "ERROR" and (not final or all(map(_never_began, runs))),
        exit_code=(last or newest.end or EndRecord()).exit_code,
        latest_checkpoint=_latest_checkpoint(checkpoints),
        best_validation=best_of(validations, context),
        last_validation=validations[-1] if validations else None,
        runs=tuple(shown),
        checkpoints=checkpoints,
        metadata=_latest(runs, "run_metadata", "data") or {},
        alerts=tuple(_alert(run.number, r) for run in runs for r in _of_kind(run, "alert")),
        artifacts=any(True for run in runs for _ in _of_kind(run, "artifacts")),
        length=_latest(runs, "completed"),
        storages=tuple(r["storage"] for run in runs for r in _of_kind(run, "storage")),
        early_exit=_latest(runs[-1:], "early_exit", "reason"),
        early_exit_text=_latest(runs[-1:], "early_exit", "text"),
        non_retryable=_latest(runs[-1:], "non_retryable", "reason"),
        out_of_ops=_latest(runs[-1:], "out_of_ops") is not None,
        asks_to_preempt=_latest(runs[-1:], "asks_to_preempt") is not None,
        spent=spent,
        **_seconds(runs, shown, spent, checkpoints),
        energy=energy_of(run.usage for run in shown),
        problems=tuple(problem for log in logs for problem in _problems(log, newest)),
    )


def _seconds(
    runs: Sequence[RunFacts],
    shown: Sequence[RunView],
    spent: dict[int, tuple[Interval, ...]],
    checkpoints: Sequence[CheckpointView],
) -> dict[str, float]:
    """The fields of a row about its time; none where a run's begin or end is unknown."""
    timed = []
    for run, view in zip(runs, shown, strict=True):
        end = view.ended if view.ended is not None else run.last_time or view.started
        if view.started is None or end is None:
            return {}
        intervals = spent[run.number]
        timed.append(TimedRun(view=view, end=end, intervals=intervals, usage=view.usage))
    found = training_time(timed, checkpoints)
    if found is None:
        return {}
    spans = sum(max(run.end - run.begin, 0.0) for run in timed)
    return {
        "run_seconds": round(spans, 2),
        "productive_seconds": round(found.productive, 2),
        "wall_seconds": round(found.since_start, 2),
    }


def end_record(runs: Sequence[RunFacts]) -> EndRecord | None:
    """The trial's terminal end record: once written it stands, until a run continues the trial."""
    end: EndRecord | None = None
    for run in runs:
        if run.start.continues:
            end = None
        if end is None and _outcome(run) in TERMINAL:
            end = run.end
    return end


def _outcome(run: RunFacts) -> str:
    return run.end.outcome if run.end is not None else ""


def _used_restart(run: RunFacts, before: RunFacts | None) -> bool:
    """Whether it counts against `max_restarts`: not if its node or its container is to blame, or if
    its code was killed at the time limit and had saved by then. The runner decides before, and
    knows no such checkpoint."""
    end = run.end or EndRecord()
    if end.bad_node or spares_restart(end.failure_digest, _digest_of_restart(before)):
        return False  # the node or the container failed, not the code
    killed = end.cause == TIME_LIMIT and end.exit_code in KILLED_BY_SIGNAL
    if _outcome(run) != RESTART or not killed:
        return _outcome(run) == RESTART
    return all(record["steps"] <= run.resumed for record in _of_kind(run, "checkpoint"))


def _digest_of_restart(run: RunFacts | None) -> str | None:
    end = run.end if run is not None else None
    return end.failure_digest if end is not None and end.outcome == RESTART else None


def _never_began(run: RunFacts) -> bool:
    return run.end is not None and not run.end.began


def _state(
    trial_id: int,
    runs: Sequence[RunFacts],
    last: EndRecord | None,
    context: FoldContext,
) -> tuple[str, str | None]:
    if last is not None:
        return TERMINAL[last.outcome], last.reason
    killed = trial_id in context.desired.killed_trials
    if context.closed is not None and not (killed and context.closed == "completed"):
        over = "the search is over" if runs else "the search ended before a run of it began"
        return TERMINAL.get(context.closed, "COMPLETED"), over
    running = bool(runs) and runs[-1].end is None
    gone = context.lost is not None
    if context.desired.stops(trial_id) and (gone or not running):
        return "CANCELED", "stopped by the user"
    if gone and (running or not context.desired.paused):
        return "ERROR", context.lost
    if running:
        return "RUNNING", None
    reason = (runs[-1].end or EndRecord()).reason if runs else None
    resting = bool(runs) and _outcome(runs[-1]) == OUT_OF_OPS
    return ("PAUSED" if context.desired.paused or resting else "QUEUED"), reason


def _end_time(runs: Sequence[RunView], last: EndRecord | None) -> float | None:
    return last.time if last is not None else runs[-1].ended if runs else None


def _alert(run: int, record: dict[str, Any]) -> AlertView:
    fields = ("time", "level", "title", "description")
    return AlertView(run=run, **{name: record[name] for name in fields if name in record})


def _of_kind(run: RunFacts, kind: str) -> Iterable[dict[str, Any]]:
    return (record for record in run.records if record.get("t") == kind)


def _latest(runs: Sequence[RunFacts], kind: str, field: str | None = None) -> Any:
    for run in reversed(runs):
        for record in reversed(run.records):
            if record.get("t") == kind:
                return record.get(field) if field else record
    return None


def _progress(runs: Sequence[RunFacts], steps: int, length: int | None) -> float:
    value = _latest(runs, "progress", "value")
    if isinstance(value, (int, float)):
        return min(max(float(value), 0.0), 1.0)
    done = (_latest(runs, "completed") or {}).get("length")
    return 1.0 if length and done == length else trained_share(steps, length)


def trained_share(steps: float, length: int | None) -> float:
    """Return the trained part of a length, for code that reports no progress; 0 if it is unknown.

    Steps far beyond the length count something else, such as batches where the length is in epochs.
    """
    return min(steps / length, 1.0) if length and steps <= 2 * length else 0.0


def validation_rows(run: RunFacts) -> Iterable[MetricRow]:
    """The run's validations as rows."""
    for record in _of_kind(run, "metrics"):
        if record.get("group") == VALIDATION:
            steps, metrics, when = record["steps"], record["metrics"], record.get("time")
            rank = record.get("rank", 0)
            yield MetricRow(VALIDATION, steps, metrics, run.number, when, rank=rank)


def clean_validations(
    runs: Sequence[RunFacts], limits: dict[int, float], metric: str | None
) -> list[ValidationView]:
    """The validations that stand, by step."""
    rows = clean_rows((row for run in runs for row in validation_rows(run)), limits)
    return [
        ValidationView(
            steps=row.steps,
            value=_number(row.metrics, metric),
            metrics=row.metrics,
            time=row.time,
        )
        for row in rows
    ]


def _number(metrics: dict[str, Any], name: str | None) -> float | None:
    value = metrics.get(name) if name else None
    return as_float(value) if isinstance(value, (int, float)) else None


def best_of(validations: Iterable[ValidationView], context: FoldContext) -> ValidationView | None:
    """The best validation, the earliest of equals; in the order of `metric_rank`."""
    if context.objectives is not None:
        return context.objectives.comparison().best((one.metrics, one) for one in validations)
    return first_best(validations, lambda validation: validation.value, context.smaller_is_better)


def _checkpoints(
    trial_id: int,
    runs: Sequence[RunFacts],
    facts: CheckpointFacts,
    measured: Callable[[int, int], dict[str, Any]],
) -> tuple[CheckpointView, ...]:
    gone = {r["uuid"] for run in runs for r in _of_kind(run, "checkpoint_deleted")}
    return tuple(
        facts.applied(_checkpoint(trial_id, run.number, record, gone, measured))
        for run in runs
        for record in _of_kind(run, "checkpoint")
    )


def _outputs(
    trial_id: int, runs: Sequence[RunFacts], context: FoldContext
) -> tuple[CheckpointView, ...]:
    """The outputs as the last run that has listed them left them: all runs have one directory.

    Of runs that were lost their files are unknown, and not gone.
    """
    listed = [(run, run.end.outputs) for run in reversed(runs) if run.end is not None]
    lost = [(run, _unlisted(run)) for run in reversed(runs) if _is_lost(run, context)]
    for run, left in (*listed, *lost):
        if left is not None:
            view = CheckpointView(
                uuid=left.uuid,
                trial=trial_id,
                run=run.number,
                steps=max(run.trained(others=False), default=0),
                time=left.time,
                resources=dict(left.resources),
                storage=left.storage,
                kind=OUTPUTS,
            )
            return (context.checkpoints.applied(view),)
    return ()


def _batch_outputs(
    trial_id: int, runs: Sequence[RunFacts], context: FoldContext
) -> tuple[CheckpointView, ...]:
    """The files that checkpoints have committed, by directory: of each run as far as later runs
    went on from, so that a batch that was processed again is there once."""
    found: dict[str, CheckpointView] = {}
    files: dict[str, dict[str, Any]] = {}
    for run, record in reversed([*_counted_commits(runs)]):
        left = msgspec.convert(record["outputs"], OutputsLeft)
        files.setdefault(left.uuid, {}).update(left.resources)
        found[left.uuid] = CheckpointView(
            uuid=left.uuid,
            trial=trial_id,
            run=run.number,
            steps=record["steps"],
            time=record.get("time"),
            resources=files[left.uuid],
            storage=left.storage,
            kind=BATCH_OUTPUTS,
        )
    return tuple(map(context.checkpoints.applied, found.values()))


def _counted_commits(runs: Sequence[RunFacts]) -> Iterable[tuple[RunFacts, dict[str, Any]]]:
    """The checkpoints with outputs, newest first, without those past a later run's beginning."""
    limit = math.inf
    for run in reversed(runs):
        commits = [r for r in _of_kind(run, "checkpoint") if r.get("outputs")]
        yield from ((run, r) for r in reversed(commits) if r["steps"] <= limit)
        if commits or run.resumed:
            limit = min(limit, run.resumed)


def _is_lost(run: RunFacts, context: FoldContext) -> bool:
    return _outcome(run) == LOST or (run.end is None and context.is_lost)


def _unlisted(run: RunFacts) -> OutputsLeft | None:
    claim = run.start.outputs
    return None if claim is None else OutputsLeft(uuid=claim.uuid, storage=claim.storage)


def _measured(
    runs: Sequence[RunFacts], limits: dict[int, float], validations: Iterable[ValidationView]
) -> Callable[[int, int], dict[str, Any]]:
    """The metrics of what a run had trained at a step: what it validated itself there, else what
    stands of that step, where the run counts that far."""
    own: dict[tuple[int, int], dict[str, Any]] = {}
    for row in (row for run in runs for row in validation_rows(run)):
        own.setdefault((row.run, row.steps), {}).update(row.metrics)
    clean = {validation.steps: validation.metrics for validation in validations}

    def metrics(run: int, steps: int) -> dict[str, Any]:
        later = clean.get(steps, {}) if steps <= limits[run] else {}
        return own.get((run, steps), later)

    return metrics


def _checkpoint(
    trial: int,
    run: int,
    record: dict[str, Any],
    gone: set[str],
    measured: Callable[[int, int], dict[str, Any]],
) -> CheckpointView:
    steps = record.get("steps") or 0
    return CheckpointView(
        uuid=record["uuid"],
        trial=trial,
        run=run,
        steps=steps,
        time=record.get("time"),
        metrics=measured(run, steps),
        resources=record.get("resources") or {},
        metadata=record.get("metadata") or {},
        digests=record.get("digests") or {},
        state=DELETED if record["uuid"] in gone else "COMPLETED",
        storage=record.get("storage"),
    )


def _latest_checkpoint(checkpoints: Sequence[CheckpointView]) -> CheckpointView | None:
    """The last that the newest run with any committed: epochs count, not steps."""
    return next(
        (c for c in reversed(checkpoints) if c.state == "COMPLETED" and c.kind is None), None
    )


def _steps(
    runs: Sequence[RunFacts],
    limits: dict[int, float],
    validations: Sequence[ValidationView],
    checkpoints: Sequence[CheckpointView],
    others: bool,
) -> int:
    valid_steps = [v.steps for v in validations]
    valid_steps += [c.steps for c in checkpoints if c.steps <= limits[c.run]]
    for run in runs:
        limit = limits[run.number]
        valid_steps.append(max((s for s in run.trained(others=others) if s <= limit), default=0))
    return max(valid_steps, default=0)


def _run_view(run: RunFacts, others: bool) -> RunView:
    saved = [record["steps"] for record in _of_kind(run, "checkpoint")]
    reported = max(run.trained(others=others), default=0)
    end = run.end or EndRecord()
    started, ended = run.start.time, end.time
    if end.outcome == LOST:  # its finder wrote this later, by hours
        ended = run.last_time or started
    return RunView(
        number=run.number,
        started=started,
        ended=ended,
        outcome=end.outcome or None,
        reason=end.reason,
        exit_code=end.exit_code,
        job=run.start.job,
        host=run.start.host,
        resumed_from=run.start.resumed.uuid,
        resumed_steps=run.resumed,
        steps=max([run.resumed, *saved, reported]),
        reported_steps=reported,
        usage=parse_usage(end.usage),
        not_staged=end.not_staged,
        deleted=end.deleted,
    )


def _problems(run: RunFacts, newest: RunFacts) -> Iterable[Problem]:
    # A log that is being written may show half a record: that is not a problem yet.
    writing = run.number == newest.number and run.end is None
    for problem in run.problems:
        if not (writing and problem.reason == TORN):
            yield problem
    for record in (run.start, run.end):
        if record is not None and record.problem:
            yield Problem(record.path, 0, record.problem)
