"""The metrics of a trial that trains: each look reads only new bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from detslurm.look.plot import Line
from detslurm.store import LoggedRuns, Run, SeriesCache, TrialDir, fs, read_runs, with_history

if TYPE_CHECKING:
    from detslurm.store import Series

Metric = tuple[str, str]
"""A group of reports, and a metric's name; a nested metric's is dotted."""

NO_LINE = Line([], [], [])


class LiveCurves:
    """The clean curves of a trial's metrics, as `read_together` has read them last."""

    def __init__(self, trial: TrialDir) -> None:
        self._trial = trial
        self._cache: SeriesCache = {}
        self._logged: LoggedRuns | None = None
        self._compacted: dict[Metric, Line] | None = None
        self._lacking: float | None = None  # when the compacted file that lacks it was written

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that were reported."""
        if self._compacted is not None:
            return [*self._compacted]
        return [] if self._logged is None else self._logged.keys

    def line(self, metric: Metric) -> Line:
        """The curve of a metric as it was read last; without points if there is none."""
        if self._compacted is not None:
            return self._compacted.get(metric, NO_LINE)
        return NO_LINE if self._logged is None else _joined(self._logged, metric)


def read_together(shown: Sequence[LiveCurves]) -> None:
    """Take in new bytes of trials of one experiment. Raises StoreFault."""
    waiting = [one for one in shown if one._compacted is None]
    if waiting:
        _look_for_compacted(waiting)
    for one in waiting:
        if one._compacted is None:
            one._logged = read_runs(one._trial, one._cache)


def _look_for_compacted(waiting: Sequence[LiveCurves]) -> None:
    """Take the curves as they were thinned at the end, but where the logs know more.

    Their file has the tables of all trials: it is read once for those that are shown, and again
    only when the file was replaced.
    """
    written = fs.modified(waiting[0]._trial.metrics_path)
    unread = [one for one in waiting if one._lacking != written]
    if written is None or not unread:
        return
    from detslurm.store.overviews import overviews  # h5py is slow to import

    found = overviews([one._trial for one in unread])
    for one in unread:
        if (series := found.get(one._trial.id)) is None:
            one._lacking = written
        else:
            one._compacted = _lines(series, with_history(one._trial.runs()))


def _lines(found: Iterable[Series], runs: Sequence[Run]) -> dict[Metric, Line]:
    return {
        (one.group, one.metric): _marked(one.steps.tolist(), one.values.tolist(), runs)
        for one in found
    }


def _joined(logged: LoggedRuns, metric: Metric) -> Line:
    """The points of all runs that stand, by step; of several at one step the last."""
    found: dict[int, float] = {}
    for (run, _), part in logged.parts.items():
        if points := part.points.get(metric):
            limit = logged.limits.get(run, -math.inf)
            pairs = zip(points.steps, points.values, strict=True)
            found |= {steps: value for steps, value in pairs if steps <= limit}
    steps = sorted(found)
    return _marked(steps, [found[at] for at in steps], logged.runs)


def _marked(steps: Sequence[int], values: Sequence[float], runs: Sequence[Run]) -> Line:
    resumed = [run.start.resumed.steps for run in runs if run.number > 1]
    marks = [at for at in resumed if at and steps and steps[0] <= at <= steps[-1]]
    return Line(steps, values, marks)
