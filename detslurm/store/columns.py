"""Metrics as columns: what a plot wants, from the compacted file or from the logs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from detslurm.store import fs
from detslurm.store.curve import (
    MetricRow,
    as_float,
    ascending,
    flat,
    is_number,
    last_valid_steps,
)
from detslurm.store.reading import logged_metrics, rows_by_line
from detslurm.store.trial import TrialDir, with_history
from detslurm.store.trial_fold import first_steps


class Columns(NamedTuple):
    """One group's metrics as columns.

    Attributes:
        steps: The steps of the reports, in ascending order.
        metrics: For each name a float for each step, NaN where a step has none. Nested names are
            dotted.
    """

    steps: Sequence[int]
    metrics: Mapping[str, Sequence[float]]


def metric_columns(trial: TrialDir, group: str, names: Sequence[str] | None = None) -> Columns:
    """The numeric metrics of one group on the clean curve (all of them, or those in `names`)."""
    if fs.exists(trial.metrics_path):
        from detslurm.store.compacted import Compacted  # h5py is slow to import

        with Compacted.of(trial) as compacted:
            if compacted is not None:
                return Columns(*compacted.numbers(group, names))
    found = _logged_columns(trial, group, names)
    return columns_of(logged_metrics(trial, group), names) if found is None else found


def in_lists(columns: Columns) -> Columns:
    """The same as lists, whether they came from the logs or, as arrays, from the compacted file."""
    metrics = {name: _listed(values) for name, values in columns.metrics.items()}
    return Columns(_listed(columns.steps), metrics)


def _listed(values: Any) -> list[Any]:
    return values if isinstance(values, list) else values.tolist()


def columns_of(rows: Iterable[MetricRow], names: Sequence[str] | None = None) -> Columns:
    """Rows of one group as columns."""
    gathered = _Gathered(names)
    gathered.take(list(rows))
    return gathered.columns()


def _logged_columns(trial: TrialDir, group: str, names: Sequence[str] | None) -> Columns | None:
    """From the logs with no row kept; None where steps were reported again, or out of order."""
    runs = with_history(trial.runs())
    files = trial.log_files(runs)
    parts, spans = [], []
    wanted = group if len(runs) == 1 else None  # other groups may show where a run ends
    for run in runs:
        part, first = _Gathered(names), first_steps(run.start)
        for rows in rows_by_line(files[run.number], wanted):
            if wanted is None:
                first.take_rows(rows)
                rows = [row for row in rows if row.group == group]
            part.take(rows)
        if not ascending(part.steps):
            return None
        parts.append(part)
        spans.append(first.span(run.number))
    limits = last_valid_steps(spans)
    for part, run in zip(parts, runs, strict=True):
        part.cut(limits[run.number])
    whole, *later = parts or [_Gathered(names)]
    for part in later:
        whole.extend(part.steps, part.columns().metrics)
    return whole.columns() if ascending(whole.steps) else None


@dataclass
class _Gathered:
    """Columns that grow; those of reports that lack a metric get a NaN."""

    names: Sequence[str] | None
    steps: list[int] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)  # the place of each first number

    def take(self, rows: Sequence[MetricRow]) -> None:
        """Add rows of one group."""
        plain = plain_columns(rows)
        if plain is not None:
            self.extend([row.steps for row in rows], plain)
            return
        for row in rows:
            numbers = {name: [value] for name, value in flat(row.metrics) if is_number(value)}
            self.extend([row.steps], numbers)

    def extend(self, steps: Sequence[int], metrics: Mapping[str, Sequence[float]]) -> None:
        """Add columns of such steps."""
        for name, values in metrics.items():
            if self.names is None or name in self.names:
                are_floats = {*map(type, values)} == {float}
                self._padded(name).extend(values if are_floats else map(as_float, values))
        self.steps += steps

    def cut(self, limit: float) -> None:
        """Drop reports past a step; steps ascend."""
        end = bisect_right(self.steps, limit)
        if end < len(self.steps):
            begun = [name for name, begin in self.begins.items() if begin < end]
            self.metrics = {name: self.metrics[name][:end] for name in begun}
            del self.steps[end:]

    def _padded(self, name: str) -> list[float]:
        if name not in self.metrics:
            self.metrics[name], self.begins[name] = [], len(self.steps)
        column = self.metrics[name]
        column.extend([math.nan] * (len(self.steps) - len(column)))
        return column

    def columns(self) -> Columns:
        """All columns, each as long as the steps."""
        return Columns(self.steps, {name: self._padded(name) for name in self.metrics})


def plain_columns(rows: Sequence[MetricRow]) -> dict[str, list[float]] | None:
    """Metrics of rows that all have the same numbers and nothing else, as most runs report them;
    None where they are of another kind. A million rows are common: no line of Python for each."""
    metrics = [row.metrics for row in rows]
    if len(set(map(tuple, metrics))) != 1:
        return None
    columns = {name: list(map(itemgetter(name), metrics)) for name in metrics[0]}
    are_numbers = all({int, float}.issuperset(map(type, column)) for column in columns.values())
    return columns if are_numbers else None


def column_name(metric: str, keys: Collection[str]) -> str:
    """A metric's name in a table that has columns of its own called `keys`."""
    return f"metrics.{metric}" if metric in keys else metric
