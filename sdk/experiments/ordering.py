"""Sorted and selected lists, as pure functions of rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from detslurm.sdk import settings
from detslurm.sdk.enums import ExperimentSortBy, ExperimentState, OrderBy, TrialSortBy
from detslurm.sdk.experiments.query import ExperimentQuery
from detslurm.store import ExperimentRow, TrialRow, flat
from detslurm.store.metric_rank import metric_rank

T = TypeVar("T")

_EXPERIMENT_KEYS: Mapping[ExperimentSortBy, Callable[[ExperimentRow], Any]] = {
    ExperimentSortBy.ID: lambda row: row.id,
    ExperimentSortBy.NAME: lambda row: row.name.casefold(),
    ExperimentSortBy.DESCRIPTION: lambda row: row.description.casefold(),
    ExperimentSortBy.START_TIME: lambda row: row.created,
    ExperimentSortBy.END_TIME: lambda row: row.ended,
    ExperimentSortBy.STATE: lambda row: row.state,
    ExperimentSortBy.NUM_TRIALS: lambda row: row.trial_count,
    ExperimentSortBy.PROGRESS: lambda row: row.progress,
    ExperimentSortBy.USER: lambda row: row.owner,
    ExperimentSortBy.RESOURCE_POOL: lambda row: row.pool,
    ExperimentSortBy.SEARCHER_METRIC_VAL: lambda row: row.best_value,
}

_CHECKPOINT_KEYS: Mapping[ExperimentSortBy, Callable[[Sequence[int]], int]] = {
    ExperimentSortBy.CHECKPOINT_SIZE: sum,
    ExperimentSortBy.CHECKPOINT_COUNT: len,
}

_TRIAL_KEYS: Mapping[TrialSortBy, Callable[[TrialRow], Any]] = {
    TrialSortBy.ID: lambda row: row.id,
    TrialSortBy.START_TIME: lambda row: row.started,
    TrialSortBy.END_TIME: lambda row: row.ended,
    TrialSortBy.STATE: lambda row: row.state,
    TrialSortBy.BEST_VALIDATION_METRIC: lambda row: _best(row),
    TrialSortBy.SEARCHER_METRIC_VAL: lambda row: _best(row),
    TrialSortBy.LATEST_VALIDATION_METRIC: lambda row: (
        row.last_validation.value if row.last_validation else None
    ),
    TrialSortBy.BATCHES_PROCESSED: lambda row: row.steps,
    TrialSortBy.DURATION: lambda row: duration(row.started, row.ended),
    TrialSortBy.RESTARTS: lambda row: row.restarts,
}


def _best(row: TrialRow) -> float | None:
    return row.best_validation.value if row.best_validation else None


def duration(started: float | None, ended: float | None) -> float | None:
    """The seconds from the start to the end, or to now; at least 0, None before the start."""
    if started is None:
        return None
    return max((time.time() if ended is None else ended) - started, 0.0)


def ordered(
    items: Iterable[T], key: Callable[[T], Any], order: OrderBy = OrderBy.ASCENDING
) -> list[T]:
    """The items by `key`; those that have none, NaN or an infinity come last in both directions."""
    known: list[T] = []
    unknown: list[T] = []
    for item in items:
        value = key(item)
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        (unknown if missing else known).append(item)
    return sorted(known, key=key, reverse=OrderBy(order) is OrderBy.DESCENDING) + unknown


def experiments_by(
    rows: Iterable[ExperimentRow],
    by: ExperimentSortBy,
    order: OrderBy,
    *,
    sizes: Callable[[], Mapping[int, Sequence[int]]],
) -> list[ExperimentRow]:
    """Experiments in order; `sizes` returns the bytes of each one's checkpoints by its id."""
    by = ExperimentSortBy(by)
    if (key := _CHECKPOINT_KEYS.get(by)) is None:
        return ordered(rows, _EXPERIMENT_KEYS[by], order)
    known = sizes()
    return ordered(rows, lambda row: key(known.get(row.id, ())), order)


def trials_by(
    rows: Iterable[TrialRow],
    by: TrialSortBy,
    order: OrderBy,
    *,
    size: Callable[[TrialRow], int],
) -> list[TrialRow]:
    """Trials in order; `size` gives the bytes of a trial's checkpoints, if it comes to that."""
    by = TrialSortBy(by)
    return ordered(rows, size if by is TrialSortBy.CHECKPOINT_SIZE else _TRIAL_KEYS[by], order)


def best_trials_first(rows: Iterable[TrialRow], experiment: ExperimentRow) -> list[TrialRow]:
    """Trials by the searcher's metric, or front by front; those without a result come last."""
    if experiment.objectives is not None:
        rows = list(rows)
        first = experiment.objectives.comparison().best_first(results_of(rows))
        found = {row.id for row in first}
        return [*first, *(row for row in rows if row.id not in found)]

    def rank(row: TrialRow) -> tuple[int, float]:
        best = _best(row)
        return metric_rank(math.nan if best is None else best, experiment.smaller_is_better)

    return sorted(rows, key=rank)


def results_of(rows: Iterable[TrialRow]) -> Iterator[tuple[Mapping[str, Any], TrialRow]]:
    """Trials with the metrics of their best validations."""
    return ((best.metrics, row) for row in rows if (best := row.best_validation) is not None)


def differing(hparams: Iterable[Mapping[str, Any] | None]) -> tuple[list[str], list[str]]:
    """Split the names of hyperparameters, nested ones dotted, into differing ones and constants.
    Trials without any are left out; those of a single trial all count as differing."""
    known = [dict(flat(one)) for one in hparams if one]
    names = list(dict.fromkeys(name for one in known for name in one))
    if len(known) == 1:
        return names, []
    apart = [name for name in names if any(one.get(name) != known[0].get(name) for one in known)]
    return apart, [name for name in names if name not in apart]


def selected(
    rows: Iterable[ExperimentRow],
    *,
    ids: Collection[int] | None = None,
    labels: Iterable[str] | None = None,
    users: Iterable[str] | None = None,
    states: Iterable[str] | None = None,
    name: str | None = None,
) -> list[ExperimentRow]:
    """The rows that Determined's client would return: the name holds this text, in any case. Raises
    ValueError for an unknown state, TypeError for a text instead of a list."""
    wanted = frozenset(settings.as_list("states", states or ()))
    if unknown := sorted(wanted - set(ExperimentState)):
        raise ValueError(f"{unknown[0]!r} is not a state, but one of {', '.join(ExperimentState)}")
    query = ExperimentQuery(
        states=frozenset(map(ExperimentState, wanted)),
        labels=settings.as_list("labels", labels or ()),
        users=frozenset(settings.as_list("users", users or ())),
    )
    return [
        row
        for row in query.chosen(rows)
        if (ids is None or row.id in ids)
        and (name is None or name.casefold() in row.name.casefold())
    ]
