"""The reports of a trial's runs, column by column; a second reading takes only new bytes.

Without numpy: `detslurm.store.series` makes arrays of it for those who have that.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detslurm.store.columns import plain_columns
from detslurm.store.curve import FirstSteps, MetricRow, as_float, flat, is_number, last_valid_steps
from detslurm.store.errors import CorruptRecord
from detslurm.store.log_lines import line_rows
from detslurm.store.run_log import lines_of
from detslurm.store.run_records import MOST_STEPS, StartRecord
from detslurm.store.trial import Run, RunLogFile, TrialDir, with_history
from detslurm.store.trial_fold import first_steps


class Points(NamedTuple):
    steps: array[int]
    values: array[float]
    times: array[float]


def _no_points() -> dict[tuple[str, str], Points]:
    return defaultdict(lambda: Points(array("q"), array("d"), array("d")))


@dataclass
class RunSeries:
    """The reports of one rank of a run, up to byte `end` of its log: of each group and metric its
    points."""

    start: StartRecord = field(default_factory=StartRecord)  # the run's claim: whose log it is
    end: int = 0
    first: FirstSteps = field(init=False)
    profiled: bool = False
    whole: bool = True
    points: dict[tuple[str, str], Points] = field(default_factory=_no_points)

    def __post_init__(self) -> None:
        self.first = first_steps(self.start)

    @property
    def size(self) -> int:
        """The number of its points."""
        return sum(len(points.steps) for points in self.points.values())

    def read_new(self, name: str, run: int, limit: int | None) -> None:
        """Take in new bytes."""
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
        plain = plain_columns(rows) if len({row.group for row in rows}) == 1 else None
        if plain is None:
            return False
        try:
            steps = array("q", [row.steps for row in rows])
            columns = {name: array("d", column) for name, column in plain.items()}
        except OverflowError:
            return False
        times = array("d", [math.nan if row.time is None else row.time for row in rows])
        self.first.take(rows[0].group, steps)
        for name, column in columns.items():
            points = self.points[rows[0].group, name]
            points.steps.extend(steps)
            points.values.extend(column)
            points.times.extend(times)
        return True

    def _take_each(self, rows: Iterable[MetricRow]) -> None:
        for row in rows:
            if abs(row.steps) <= MOST_STEPS:
                self.first.take(row.group, [row.steps])
                self._take(row.group, row.steps, row.metrics, row.time)

    def _take(self, group: str, steps: int, metrics: Mapping[str, Any], when: float | None) -> None:
        for metric, value in flat(metrics):
            if is_number(value):
                points = self.points[group, metric]
                points.steps.append(steps)
                points.values.append(as_float(value))
                points.times.append(math.nan if when is None else when)


SeriesCache = dict[tuple[int, int], RunSeries]
"""The reports of a trial's runs, by run and rank: as `ReadCache`, for curves."""


class LoggedRuns(NamedTuple):
    """The runs of a trial as far as they are read."""

    runs: Sequence[Run]  # the runs, with those of a trial that it continues
    # The reports of each run, by its number and the rank; later ones prevail.
    parts: Mapping[tuple[int, int], RunSeries]
    limits: Mapping[int, float]  # the last step of each that still stands, by its number

    @property
    def keys(self) -> list[tuple[str, str]]:
        """The groups and metrics that were reported, in the order of their first report."""
        return [*dict.fromkeys(key for part in self.parts.values() for key in part.points)]


def read_runs(trial: TrialDir, cache: SeriesCache) -> LoggedRuns:
    """Read a trial's logs, or read on where the cache knows them."""
    runs = with_history(trial.runs())
    files = trial.log_files(runs)
    parts, spans = {}, []
    for run in runs:
        first = first_steps(run.start)
        for file in files[run.number]:
            part = parts[file.run, file.rank] = _read(run, file, cache)
            first.join(part.first)
        spans.append(first.span(run.number))
    return LoggedRuns(runs, parts, last_valid_steps(spans))


def _read(run: Run, file: RunLogFile, cache: SeriesCache) -> RunSeries:
    key = (file.run, file.rank)
    known = cache.get(key)
    # A later run may have cut off lines that were read before, or the store may be a new one.
    cut = known is not None and file.limit is not None and file.limit < known.end
    if known is None or not known.whole or cut or known.start != run.start:
        known = cache[key] = RunSeries(run.start)
    known.read_new(file.path, file.run, file.limit)
    return known
