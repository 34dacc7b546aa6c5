"""One metric of one trial as a curve, read from the logs; a second reading takes only new bytes.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from detslurm.store.run_series import RunSeries, SeriesCache, read_runs
from detslurm.store.thinning import BucketMeans
from detslurm.store.trial import TrialDir


class Series(NamedTuple):
    """One metric of one trial on the clean curve: the points at which it was reported."""

    group: str  # the group of the reports
    metric: str  # the metric's name; nested ones are dotted
    steps: Any  # how many batches were trained at each point, ascending; an array of numpy
    values: Any  # the metric at each point
    times: Any  # when each point was reported, in seconds since 1970; NaN where that is unknown
    reported: int  # how many points there are; more than the arrays have where they were thinned
    means: BucketMeans | None = None  # over parts of all points, where they were thinned


def logged_series(trial: TrialDir, cache: SeriesCache | None = None) -> list[Series]:
    """All numeric metrics of a trial on the clean curve, from its logs."""
    found = read_runs(trial, {} if cache is None else cache)
    every = (_joined(key, found.parts, found.limits) for key in found.keys)
    return [series for series in every if series.reported]


def _joined(
    key: tuple[str, str], parts: Mapping[tuple[int, int], RunSeries], limits: Mapping[int, float]
) -> Series:
    """The points of all runs that stand, by step; of several at one step the last."""
    pieces = [
        (np.array(points.steps), np.array(points.values), np.array(points.times), limits[run])
        for (run, _), part in parts.items()
        if (points := part.points.get(key)) is not None
    ]
    stands = np.concatenate([steps <= limit for steps, _, _, limit in pieces])
    steps, values, times = (_chosen((piece[n] for piece in pieces), stands) for n in range(3))
    order = np.argsort(steps, kind="stable")
    order = order[np.append(np.diff(steps[order]) != 0, True)[: len(order)]]
    return Series(*key, steps[order], values[order], times[order], len(order))


def _chosen(arrays: Iterable[Any], which: Any) -> Any:
    return np.concatenate(list(arrays))[which]
