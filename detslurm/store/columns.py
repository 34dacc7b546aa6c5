"""Metrics as columns: what a plot wants, from the compacted file or from the logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from detslurm.store import fs
from detslurm.store.curve import MetricRow, flat
from detslurm.store.reading import logged_metrics
from detslurm.store.trial import TrialDir


class Columns(NamedTuple):
    """One group's metrics as columns.

    Attributes:
        steps: The steps of the reports, in ascending order.
        metrics: For each name a number for each step, NaN where a step has none. Nested names are
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
    return columns_of(logged_metrics(trial, group), names)


def columns_of(rows: Iterable[MetricRow], names: Sequence[str] | None = None) -> Columns:
    """Rows of one group as columns."""
    rows = list(rows)
    plain = plain_columns(rows)
    if plain is not None:
        wanted = {name: plain[name] for name in plain if names is None or name in names}
        return Columns([row.steps for row in rows], wanted)
    steps: list[int] = []
    metrics: dict[str, list[float]] = {}
    for place, row in enumerate(rows):
        steps.append(row.steps)
        for name, value in flat(row.metrics):
            if is_number(value) and (names is None or name in names):
                column = metrics.setdefault(name, [])
                column.extend([math.nan] * (place - len(column)))
                column.append(value)
    for column in metrics.values():
        column.extend([math.nan] * (len(steps) - len(column)))
    return Columns(steps, metrics)


def plain_columns(rows: Sequence[MetricRow]) -> dict[str, list[float]] | None:
    """Metrics of rows that all have the same numbers and nothing else, as most runs report them;
    None where they are of another kind. A million rows are common: no line of Python for each."""
    metrics = [row.metrics for row in rows]
    if len(set(map(tuple, metrics))) != 1:
        return None
    columns = {name: list(map(itemgetter(name), metrics)) for name in metrics[0]}
    are_numbers = all({int, float}.issuperset(map(type, column)) for column in columns.values())
    return columns if are_numbers else None


def is_number(value: Any) -> bool:
    """Whether a plot can show it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
