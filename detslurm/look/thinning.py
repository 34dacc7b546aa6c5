"""Curves as the document has them: few enough points that all of them stay small together.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from detslurm.look.document import MAX_POINTS, Curve, Number
from detslurm.look.plain import finite
from detslurm.store.series import Series
from detslurm.store.thinning import LEAST, thinned

ALL_POINTS: Final = 120_000
"""The most points of all curves of a document together, unless they are very many."""

ALL_BYTES: Final = 5_000_000
"""How long a document becomes at most, unless it is that long without curves."""

_POINT_BYTES: Final = 35  # of a step, a value and a time

_DIGITS: Final = 6


def points_per_curve(counts: Iterable[int], length: int = 0) -> int:
    """The most points of one curve, by how many points each curve has.

    `length` is how many bytes the document has without them. Curves that are short leave their part
    to the others. No curve is thinned to fewer than `LEAST` points.
    """
    left = min(ALL_POINTS, max(ALL_BYTES - length, 0) // _POINT_BYTES)
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
    return Series(series.group, series.metric, *arrays, series.reported)


def curve(series: Series) -> Curve:
    """A series for JSON: values with six significant digits, times with tenths of a second."""
    times = [None if math.isnan(time) else round(time, 1) for time in series.times.tolist()]
    return Curve(
        group=series.group,
        metric=series.metric,
        steps=series.steps.tolist(),
        values=_numbers(series.values),
        times=times if any(time is not None for time in times) else [],
        count=series.reported,
    )


def _numbers(values: Any) -> list[Number]:
    return [finite(float(f"{value:.{_DIGITS}g}")) for value in values.tolist()]
