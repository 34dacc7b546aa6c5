"""Choosing among checkpoints, and whether their files are still on the disk."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from detslurm.sdk.checkpoints.checkpoint import Checkpoint
from detslurm.sdk.enums import OrderBy
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.ordering import ordered
from detslurm.storage import SharedFS
from detslurm.store import ExperimentDir, NotFound, SavedCheckpoints, Store, objectives_of
from detslurm.store.metric_rank import metric_rank

FILES_GONE: Final = "all its files are missing"

# From so many on in one directory it is listed once, which asks the file server less often.
_LISTED: Final = 50

_FIELDS: Final[dict[str, Callable[[Checkpoint], Any]]] = {
    "uuid": lambda c: c.uuid,
    "trial_id": lambda c: c.trial_id,
    "experiment_id": lambda c: c.experiment_id,
    "batch_number": lambda c: c.steps_completed,
    "end_time": lambda c: c.report_time,
    "state": lambda c: c.state,
    "size": lambda c: c.size,
    "searcher_metric": lambda c: c.searcher_metric,
}


def objects(store: Store, saved: Iterable[SavedCheckpoints]) -> Iterator[Checkpoint]:
    """Checkpoints as objects; those that were deleted, too."""
    for one in saved:
        directory = ExperimentDir(store, one.experiment)
        yield from (Checkpoint(directory, one, row) for row in one.rows)


def sort_key(name: str) -> Callable[[Checkpoint], Any]:
    """The key that sorts checkpoints: a field of theirs, or else a validation metric."""
    field = _FIELDS.get(name.lower())
    return field or (lambda checkpoint: checkpoint.validation_metrics.get(name))


def sort_names(checkpoints: Iterable[Checkpoint]) -> list[str]:
    """The possible keys for sorting: their fields, and the metrics that they have or may get."""
    found: set[str] = set()
    for one in checkpoints:
        found |= {*one.validation_metrics, *filter(None, [one._saved.metric])}
    return [*_FIELDS, *sorted(found)]


def in_order(
    checkpoints: Iterable[Checkpoint], name: str, *, descending: bool = False
) -> list[Checkpoint]:
    """Checkpoints sorted by a field or a metric; those without a finite value come last."""
    order = OrderBy.DESCENDING if descending else OrderBy.ASCENDING
    return ordered(checkpoints, sort_key(name), order)


def best_first(
    checkpoints: Iterable[Checkpoint],
    sort_by: str | None = None,
    smaller_is_better: bool | None = None,
) -> list[Checkpoint]:
    """Those that are complete and have the metric, the best first. By default the searcher's metric
    decides, or its objectives: front by front, and each front by the first metric."""
    if (sort_by is None) != (smaller_is_better is None):
        raise ValueError("sort_by and smaller_is_better are given together, or neither of them")
    name = sort_by if sort_by is not None else "searcher_metric"
    key = sort_key(name)
    whole = [c for c in checkpoints if c.state == "COMPLETED"]
    if sort_by is None and whole and (several := whole[0].objectives) is not None:
        return several.comparison().best_first((c.validation_metrics, c) for c in whole)
    rated = [c for c in whole if _is_number(key(c))]
    smaller = smaller_is_better
    if smaller is None:
        smaller = rated[0].smaller_is_better if rated else True
    return sorted(rated, key=lambda checkpoint: metric_rank(key(checkpoint), smaller))


def front_of(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """The Pareto front of those that are complete; with a single metric all with its best value."""
    whole = [c for c in checkpoints if c.state == "COMPLETED"]
    if not whole:
        return []
    metric, smaller = whole[0]._saved.metric, whole[0].smaller_is_better
    several = objectives_of(metric, whole[0].objectives, smaller_is_better=smaller)
    if several is None:
        return []
    return several.comparison().front((c.validation_metrics, c) for c in whole)


def fronts_of(checkpoints: Iterable[Checkpoint]) -> frozenset[str]:
    """The ids of those on Pareto fronts; all checkpoints of such a search are needed."""
    groups: dict[int, list[Checkpoint]] = defaultdict(list)
    for one in checkpoints:
        if one.objectives is not None:
            groups[one.experiment_id].append(one)
    return frozenset(one.uuid for group in groups.values() for one in front_of(group))


def unrated(checkpoints: Sequence[Checkpoint], sort_by: str | None = None) -> str:
    """Why none of them is the best, in words."""
    there = [one for one in checkpoints if one.state == "COMPLETED"]
    damaged = next((one for one in checkpoints if one.problem is not None), None)
    if damaged is not None and not there:
        return f"no whole checkpoint: files are missing, of {damaged.location} for example"
    named = sort_by or next((_names(one) for one in checkpoints), None)
    reported = ", ".join(sorted({name for one in checkpoints for name in one.validation_metrics}))
    return (
        f"no checkpoint with a validation{f' of {named}' if named else ''} at its step"
        f"{f', but with {reported}' if reported else ''}"
    )


def _names(one: Checkpoint) -> str | None:
    return one._saved.metric if one.objectives is None else ", ".join(one.objectives.names)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value)


def found_by(checkpoints: Iterable[Checkpoint], prefix: str) -> Checkpoint:
    """The one checkpoint whose id begins so. Raises NotFound or, for several, LifecycleError."""
    found = [one for one in checkpoints if one.uuid.startswith(prefix)]
    found = [one for one in found if one.uuid == prefix] or found
    if not found:
        raise NotFound(f"there is no checkpoint {prefix}")
    if len(found) > 1:
        names = ", ".join(one.uuid for one in found[:3]) + (", ..." if len(found) > 3 else "")
        raise LifecycleError(f"{prefix} is the beginning of {len(found)} checkpoints: {names}")
    return found[0]


def as_stored(store: Store, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints, DELETED where their directories are gone from a visible disk."""
    groups: dict[Path, list[Checkpoint]] = defaultdict(list)
    for one in checkpoints:
        if one.path is not None and one.state != "DELETED":
            groups[one.path.parent].append(one)
    for base, group in groups.items():
        if SharedFS(base).is_visible(store.path):
            for one in _missing(base, group):
                one.state, one.problem = "DELETED", FILES_GONE
    return list(checkpoints)


def _missing(base: Path, checkpoints: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    # A listing may be old: it only saves questions for single names.
    names = set(os.listdir(base)) if len(checkpoints) >= _LISTED else set()  # noqa: PTH208
    for one in checkpoints:
        if one.uuid not in names and not (base / one.uuid).is_dir():
            yield one
