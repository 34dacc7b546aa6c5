"""One metric of one trial as a curve, read from the logs; a second reading takes only what is new.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from detslurm.store.columns import as_float, is_number
from detslurm.store.curve import MetricRow, Span, flat, last_valid_steps
from detslurm.store.errors import CorruptRecord
from detslurm.store.log_lines import MOST_STEPS, line_rows
from detslurm.store.reading import counted_bytes
from detslurm.store.run_log import lines_of
from detslurm.store.thinning import BucketMeans
from detslurm.store.trial import Run, TrialDir, with_history
from detslurm.store.trial_fold import resumed_steps


class Series(NamedTuple):
    """One metric of one trial on the clean curve: the points at which it was reported.

    Attributes:
        group: The group of the reports.
        metric: The metric's name; nested ones are dotted.
        steps: How many batches were trained at each point, ascending; an array of numpy.
        values: The metric at each point.
        times: When each point was reported, in seconds since 1970; NaN where that is unknown.
        reported: How many points there are; more than the arrays have where they were thinned.
        means: Over parts of all points, where they were thinned.
    """

    group: str
    metric: str
    steps: Any
    values: Any
    times: Any
    reported: int
    means: BucketMeans | None = None


class _Points(NamedTuple):
    steps: array[int]
    values: array[float]
    times: array[float]


def _no_points() -> _Points:
    return _Points(array("q"), array("d"), array("d"))


@dataclass
class RunSeries:
    """What one run reported, up to byte `end` of its log: of each group and metric its points."""

    start: dict[str, Any] = field(default_factory=dict)  # the run's claim: whose log it is
    end: int = 0
    first: float = math.inf  # the smallest step of any report
    profiled: bool = False
    whole: bool = True
    points: dict[tuple[str, str], _Points] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of its points."""
        return sum(len(points.steps) for points in self.points.values())

    def read_new(self, name: str, run: int, limit: int | None) -> None:
        """Take in what is new."""
        for offset, line in lines_of(name, limit, self.end, []):
            self.end = offset + len(line) + 1
            self.profiled = self.profiled or b'"t":"profile"' in line
            try:
                rows = line_rows(line, run)
            except CorruptRecord:
                self.whole = False  # a file server may show zeros for a moment
                continue
            if rows and not self._take_together(rows):
                self._take_each(rows)

    def _take_together(self, rows: Sequence[MetricRow]) -> bool:
        """Take rows of one group that have the same numbers, as most lines do, column by column;
        False where they are of another kind."""
        steps, metrics = [row.steps for row in rows], [row.metrics for row in rows]
        if len({row.group for row in rows}) > 1 or len(set(map(tuple, metrics))) > 1:
            return False
        columns = {name: [values[name] for values in metrics] for name in metrics[0]}
        is_plain = all(set(map(type, column)) == {float} for column in columns.values())
        if not is_plain or max(map(abs, steps)) > MOST_STEPS:
            return False
        times = [math.nan if row.time is None else row.time for row in rows]
        self.first = min(self.first, *steps)
        for name, column in columns.items():
            points = self._points_of(rows[0].group, name)
            points.steps.extend(steps)
            points.values.extend(column)
            points.times.extend(times)
        return True

    def _take_each(self, rows: Iterable[MetricRow]) -> None:
        for row in rows:
            if abs(row.steps) <= MOST_STEPS:
                self.first = min(self.first, row.steps)
                self._take(row.group, row.steps, row.metrics, row.time)

    def _take(self, group: str, steps: int, metrics: Mapping[str, Any], when: float | None) -> None:
        for metric, value in flat(metrics):
            if is_number(value):
                points = self._points_of(group, metric)
                points.steps.append(steps)
                points.values.append(as_float(value))
                points.times.append(math.nan if when is None else when)

    def _points_of(self, group: str, metric: str) -> _Points:
        points = self.points.get((group, metric))
        if points is None:
            points = self.points[group, metric] = _no_points()
        return points


SeriesCache = dict[int, RunSeries]
"""What was read of a trial's runs, by number: as `ReadCache`, for curves."""


def logged_series(trial: TrialDir, cache: SeriesCache | None = None) -> list[Series]:
    """All numeric metrics of a trial on the clean curve, from its logs."""
    cache = {} if cache is None else cache
    runs = with_history(trial.runs())
    bounds = counted_bytes(runs)
    parts = {run.number: _read(trial, run, bounds.get(run.number), cache) for run in runs}
    spans = [Span(r.number, resumed_steps(r.start), parts[r.number].first) for r in runs]
    limits = last_valid_steps(spans)
    keys = dict.fromkeys(key for part in parts.values() for key in part.points)
    found = (_joined(key, parts, limits) for key in keys)
    return [series for series in found if series.reported]


def _read(trial: TrialDir, run: Run, limit: int | None, cache: SeriesCache) -> RunSeries:
    known = cache.get(run.number)
    # A later run may have cut off what was read before, or somebody may have made a new store.
    cut = known is not None and limit is not None and limit < known.end
    if known is None or not known.whole or cut or known.start != run.start:
        known = cache[run.number] = RunSeries(run.start)
    known.read_new(str(trial.records_path(run.number)), run.number, limit)
    return known


def _joined(
    key: tuple[str, str], parts: Mapping[int, RunSeries], limits: Mapping[int, float]
) -> Series:
    """The points of all runs that stand, by step; of several at one step the last."""
    pieces = [
        (np.array(points.steps), np.array(points.values), np.array(points.times), limits[run])
        for run, part in parts.items()
        if (points := part.points.get(key)) is not None
    ]
    stands = np.concatenate([steps <= limit for steps, _, _, limit in pieces])
    steps, values, times = (_chosen((piece[n] for piece in pieces), stands) for n in range(3))
    order = np.argsort(steps, kind="stable")
    order = order[np.append(np.diff(steps[order]) != 0, True)[: len(order)]]
    return Series(*key, steps[order], values[order], times[order], len(order))


def _chosen(arrays: Iterable[Any], which: Any) -> Any:
    return np.concatenate(list(arrays))[which]
