"""The table of a trial's time: from its runs, checkpoints and records. Pure: no disk, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Self

import msgspec

from detslurm._base.states import ERROR, LOST, PAUSED, RESTART
from detslurm.store.run_usage import RunUsage, is_idle
from detslurm.store.time_parts import PRODUCTIVE, Advice, Interval, advice, seconds_of
from detslurm.store.views import CheckpointView, RunView

_FAILED: Final = (ERROR, LOST, RESTART)
_SPENT: Final = {"start": "start_code", "validation": "validation", "save": "save"}


class CheckpointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of runs that decide about the best checkpoint interval, in seconds."""

    saves: tuple[float, ...] = ()  # how long each save kept the training waiting
    intervals: tuple[float, ...] = ()  # the training between two saves of a run
    failures: int = 0  # how many runs ended with batches that were not saved
    up: float = 0.0  # training, validation and saves, whatever became of them
    lost: float = 0.0  # starts, restarts and waiting

    @classmethod
    def total(cls, several: Sequence[Self]) -> Self:
        """Those of several trials."""
        return cls(
            saves=tuple(seconds for one in several for seconds in one.saves),
            intervals=tuple(seconds for one in several for seconds in one.intervals),
            failures=sum(one.failures for one in several),
            up=sum(one.up for one in several),
            lost=sum(one.lost for one in several),
        )


class TrainingTime(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the time of a trial, or of several. None means that a figure is unknown.

    Attributes:
        parts: The seconds of each part, by name; `detslurm.store.time_parts` describes them. The
            seconds of an unknown part are in another part, mostly in `training`.
        since_start: The seconds since the job of the first run started, without pauses.
        since_submission: The same since the submission.
        saving: The facts about its checkpoints.
    """

    parts: dict[str, float | None]
    since_start: float
    since_submission: float | None = None
    saving: CheckpointFigures = CheckpointFigures()

    @property
    def productive(self) -> float:
        """The seconds of training and validation that were not done again."""
        return sum(self.parts.get(name) or 0.0 for name in PRODUCTIVE)

    @property
    def ettr(self) -> float | None:
        """The effective training time ratio: productive time over `since_start`."""
        return self.productive / self.since_start if self.since_start > 0 else None

    @property
    def ettr_submission(self) -> float | None:
        """The same over `since_submission`."""
        return self.productive / self.since_submission if self.since_submission else None

    @property
    def checkpoint(self) -> Advice | None:
        """The best checkpoint interval; None without a failure and a measured save."""
        one = self.saving
        return advice(one.saves, one.intervals, one.failures, one.up, one.lost)

    @property
    def ettr_best(self) -> float | None:
        """The ratio that the best checkpoint interval would have given, as expected."""
        best = self.checkpoint
        return None if best is None or self.ettr is None else min(self.ettr * best.gain, 1.0)

    @classmethod
    def total(cls, tables: Sequence[Self]) -> Self | None:
        """The sum of several tables, of those that know a figure; None of no table."""
        if not tables:
            return None
        whole = [one.since_submission for one in tables]
        return cls(
            parts={name: _sum(one.parts.get(name) for one in tables) for name in tables[0].parts},
            since_start=sum(one.since_start for one in tables),
            # As the productive time is that of all trials, this is that of all, or unknown.
            since_submission=None if None in whole else _sum(whole),
            saving=CheckpointFigures.total([one.saving for one in tables]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        best = self.checkpoint
        return {
            "parts": self.parts,
            "since_start": self.since_start,
            "since_submission": self.since_submission,
            "ettr": self.ettr,
            "ettr_submission": self.ettr_submission,
            "checkpoint": None if best is None else best._asdict(),
            "ettr_best": self.ettr_best,
        }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def recorded_intervals(records: Iterable[Mapping[str, Any]]) -> Iterator[Interval]:
    """The parts of a run's time that its code has recorded."""
    for record in records:
        kind, seconds, end = record.get("t"), record.get("seconds"), record.get("time")
        if kind not in ("spent", "checkpoint") or seconds is None or end is None:
            continue
        part = "save" if kind == "checkpoint" else _SPENT.get(record.get("on", ""))
        if part is not None:
            yield Interval(part, end - seconds, end)


def idle_intervals(usage: RunUsage) -> Iterator[Interval]:
    """The parts in which all processes of a run did nothing."""
    slots, before = usage.requested.slots / max(usage.requested.nodes, 1), 0.0
    if usage.begun is None or not usage.slot_seconds:  # such as of GPUs that can't be read
        return
    for point in usage.history:
        sample = {"seconds": point.node_seconds, "cpu": point.cpu_seconds}
        if (point.gpu_percent or 0.0) < 1.0 and is_idle(sample, slots):
            yield Interval("idle", usage.begun + before, usage.begun + point.end)
        before = point.end


class TimedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, as far as its time is concerned."""

    view: RunView
    end: float  # when it ended, in seconds since 1970, or the time up to which it is looked at
    intervals: tuple[Interval, ...] = ()  # the parts that are recorded
    queued: float | None = None  # when its job began to wait; None if unknown
    usage: RunUsage | None = None  # None if unknown

    @property
    def begin(self) -> float:
        """When its runner began it."""
        return self.end if self.view.started is None else self.view.started

    @property
    def job_start(self) -> float | None:
        """When its job started."""
        started = self.view.job.started
        return None if started is None else min(started, self.begin)


class CheckpointsByRun(msgspec.Struct, frozen=True):
    """A trial's checkpoints, by id and by run."""

    by_id: dict[str, CheckpointView]
    by_run: dict[int, list[CheckpointView]]

    @classmethod
    def of(cls, checkpoints: Iterable[CheckpointView]) -> Self:
        """Those that a run can begin with."""
        found = [one for one in checkpoints if one.kind is None]
        by_run: dict[int, list[CheckpointView]] = {}
        for one in found:
            by_run.setdefault(one.run, []).append(one)
        return cls({one.uuid: one for one in found}, by_run)


def training_time(
    runs: Sequence[TimedRun], checkpoints: Sequence[CheckpointView]
) -> TrainingTime | None:
    """The table of a trial's time; None without a run."""
    if not runs:
        return None
    first, end = runs[0], max(run.end for run in runs)
    start = first.begin if first.job_start is None else first.job_start
    submitted = first.queued if first.queued is None else min(first.queued, start)
    saved = CheckpointsByRun.of(checkpoints)
    intervals = [*_between(runs)]
    for run, follower in zip(runs, [*runs[1:], None], strict=True):
        intervals += _within(run, follower, saved)
    begin = start if submitted is None else submitted
    seconds = seconds_of(intervals, begin, end)
    unknown = _unknown(runs, bool(saved.by_id))
    paused = seconds["paused"]
    return TrainingTime(
        parts={name: None if name in unknown else value for name, value in seconds.items()},
        since_start=end - start - paused,
        since_submission=None if submitted is None else end - submitted - paused,
        saving=_checkpoint_figures(runs, saved, seconds),
    )


def _between(runs: Sequence[TimedRun]) -> Iterator[Interval]:
    """The known intervals before the first run and between two runs."""
    for before, run in zip([None, *runs], runs, strict=False):
        since = run.queued if before is None else before.end
        started = run.begin if run.job_start is None else run.job_start
        if before is not None and started < before.end:
            started = run.begin  # in the same job
        since = started if since is None else since
        yield Interval("start_slurm", max(started, since), run.begin)
        if before is not None and before.view.outcome == PAUSED:
            yield Interval("paused", since, started)
        elif run.queued is not None:
            yield Interval("queue", max(run.queued, since), started)


def _within(
    run: TimedRun, follower: TimedRun | None, saved: CheckpointsByRun
) -> Iterator[Interval]:
    yield Interval("training", run.begin, run.end)
    starts = [one for one in run.intervals if one.part == "start_code"]
    if starts:
        yield Interval("start_detslurm", run.begin, min(one.begin for one in starts))
    # In its start a run waits for files and other processes: that is the start's time.
    trained = max((one.end for one in starts), default=run.begin)
    idle = () if run.usage is None else idle_intervals(run.usage)
    recorded = [*run.intervals, *(i._replace(begin=max(i.begin, trained)) for i in idle)]
    # Clocks of nodes differ: records of a run must hide nothing outside of it.
    for part, begin, end in recorded:
        yield Interval(part, max(begin, run.begin), min(end, run.end))
    yield from _discarded(run, follower, saved)


def _discarded(
    run: TimedRun, follower: TimedRun | None, saved: CheckpointsByRun
) -> Iterator[Interval]:
    """The end of a run that the next run did not go on from."""
    since = _kept_until(run, follower, saved)
    if since is None:
        return
    yield Interval("repeated" if _failed(run, follower, saved) else "restart", since, run.end)


def _kept_until(run: TimedRun, follower: TimedRun | None, saved: CheckpointsByRun) -> float | None:
    """When the last checkpoint was saved that counts, or the run's beginning; None where all of
    the run counts, or nothing is known."""
    if follower is None:
        if run.view.outcome not in _FAILED:
            return None
        own = saved.by_run.get(run.view.number, ())
        return max((one.time or run.end for one in own), default=run.begin)
    if not _has_trained(run) and run.view.outcome not in _FAILED:
        return None
    kept = saved.by_id.get(follower.view.resumed_from or "")
    if kept is None or kept.run < run.view.number:
        return run.begin
    return kept.time if kept.run == run.view.number else None


def _has_trained(run: TimedRun) -> bool:
    return run.view.steps > run.view.resumed_steps


def _steps_lost(run: TimedRun, follower: TimedRun | None, saved: CheckpointsByRun) -> int:
    if follower is not None:
        return max(run.view.steps - follower.view.resumed_steps, 0)
    own = (one.steps for one in saved.by_run.get(run.view.number, ()))
    return run.view.steps - max(own, default=run.view.resumed_steps)


def _unknown(runs: Sequence[TimedRun], has_saved: bool) -> set[str]:
    """The parts that nothing is known about."""
    found = {one.part for run in runs for one in run.intervals}
    known = {
        "queue": any(run.queued is not None for run in runs),
        "start_slurm": any(run.job_start is not None for run in runs),
        "start_detslurm": "start_code" in found,
        "start_code": "start_code" in found,
        "validation": "validation" in found,
        # Code that has begun and saves nothing spends no time on it.
        "save": "save" in found or ("start_code" in found and not has_saved),
        "idle": any(run.usage is not None and run.usage.slot_seconds for run in runs),
    }
    return {name for name, is_known in known.items() if not is_known}


def _checkpoint_figures(
    runs: Sequence[TimedRun], saved: CheckpointsByRun, seconds: Mapping[str, float]
) -> CheckpointFigures:
    saves = [i.end - i.begin for run in runs for i in run.intervals if i.part == "save"]
    # Up to a failure: what ends by itself, or as the user wants, is no failure.
    followers = [*runs[1:], None]
    failures = sum(_failed(run, after, saved) for run, after in zip(runs, followers, strict=True))
    between = []
    for run in runs:
        own = saved.by_run.get(run.view.number, ())
        times = sorted(one.time for one in own if one.time is not None)
        between += [after - before for before, after in pairwise(times)]
    typical = sorted(saves)[len(saves) // 2] if saves else 0.0
    up = sum(seconds[name] for name in ("training", "validation", "repeated", "idle", "save"))
    lost = ("restart", "queue", "start_slurm", "start_detslurm", "start_code")
    return CheckpointFigures(
        saves=tuple(saves),
        intervals=tuple(max(one - typical, 0.0) for one in between),
        failures=failures,
        up=up,
        lost=sum(seconds[name] for name in lost),
    )


def _failed(run: TimedRun, follower: TimedRun | None, saved: CheckpointsByRun) -> bool:
    """Whether it ended with batches that were not saved, as far as is known."""
    if _kept_until(run, follower, saved) is None:
        return False
    return run.view.outcome in _FAILED or _steps_lost(run, follower, saved) > 0
