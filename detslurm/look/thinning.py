"""Curves as the document has them: few enough points that all of them stay small together.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from detslurm.look.document import DOCUMENT, MAX_POINTS, Curve, CurveBudget, Means, Number
from detslurm.look.plain import finite
from detslurm.store import Series
from detslurm.store.thinning import LEAST, BucketMeans, fewer_means, means_of, parts_of, thinned

_DIGITS: Final = 6


def points_per_curve(counts: Iterable[int], budget: CurveBudget = DOCUMENT, length: int = 0) -> int:
    """The most points of one curve, by how many points each curve has.

    `length` is how many bytes the document has without them. Curves that are short leave their part
    to the others. No curve is thinned to fewer than `LEAST` points.
    """
    left = min(budget.points, max(budget.size - length, 0) // budget.point_size)
    curves = sorted(counts)
    for place, count in enumerate(curves):
        share = left // (len(curves) - place)
        if count > share:
            return min(max(share, LEAST), MAX_POINTS)
        left -= count
    return MAX_POINTS


def fewer(series: Series, most: int) -> Series:
    """A series thinned to `most` points; `reported` stays."""
    if len(series.values) <= most:
        return series
    places = thinned(series.steps, series.values, most)
    arrays = (series.steps[places], series.values[places], series.times[places])
    if series.means is not None:
        means = fewer_means(series.means, parts_of(most))
    else:
        means = means_of(series.steps, series.values, series.times, parts_of(most))
    return Series(series.group, series.metric, *arrays, series.reported, means)


def curve(series: Series) -> Curve:
    """A series for JSON: values with six significant digits, times with tenths of a second."""
    finite = series.values[np.isfinite(series.values)]
    return Curve(
        group=series.group,
        metric=series.metric,
        steps=series.steps.tolist(),
        values=_numbers(series.values),
        times=_times(series.times),
        count=series.reported,
        smallest=float(finite.min()) if len(finite) else None,
        largest=float(finite.max()) if len(finite) else None,
        means=None if series.means is None else _means(series.means),
    )


def _means(means: BucketMeans) -> Means:
    steps = np.rint(means.steps).astype(np.int64).tolist()
    return Means(steps=steps, values=_numbers(means.values), times=_times(means.times))


def _times(times: Any) -> list[float | None]:
    found = [None if math.isnan(time) else round(time, 1) for time in times.tolist()]
    return found if any(time is not None for time in found) else []


def _numbers(values: Any) -> list[Number]:
    return [finite(float(f"{value:.{_DIGITS}g}")) for value in values.tolist()]
