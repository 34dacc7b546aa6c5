"""Fewer points of a curve that look like all of them: the extremes of each bucket of steps.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

LEAST: Final = 16
"""The smallest number of points that a curve can be thinned to."""


def thinned(steps: Any, values: Any, most: int) -> Any:
    """The places of at most `most` points, ascending; all places where there are no more.

    The steps, which ascend, are cut into buckets of equal width. Of each bucket the smallest and
    the largest finite value stay, and the first NaN and the first infinity of either sign; so do
    the first and the last point. A bucket in which nothing was reported has no point.
    """
    if most < LEAST:
        raise ValueError(f"a curve can't be thinned to {most} points, but to {LEAST}")
    if len(values) <= most:
        return np.arange(len(values))
    buckets = most // 2 - 1
    while len(places := _kept(steps, values, buckets)) > most:
        buckets = max(min(buckets * most // len(places), buckets - 1), 1)
    return places


def _kept(steps: Any, values: Any, buckets: int) -> Any:
    edges = np.linspace(float(steps[0]), float(steps[-1]) + 1, buckets + 1)
    starts = np.unique(np.append(0, np.searchsorted(steps, edges[1:-1])))
    starts = starts[starts < len(values)]  # floats are not exact where steps are beyond 2^53
    lengths = np.diff(starts, append=len(values))
    bucket = np.repeat(np.arange(len(starts)), lengths)
    finite = np.isfinite(values)
    places = [[0, len(values) - 1]]
    for fewer, missing in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        known = np.where(finite, values, missing)
        extreme = np.repeat(fewer.reduceat(known, starts), lengths)
        places.append(_first_of_each(bucket, finite & (known == extreme)))
    for special in (np.isnan(values), np.isposinf(values), np.isneginf(values)):
        places.append(_first_of_each(bucket, special))
    return np.unique(np.concatenate(places))


def _first_of_each(bucket: Any, wanted: Any) -> Any:
    """The first place in each bucket where `wanted` is true."""
    places = np.flatnonzero(wanted)
    return places[np.unique(bucket[places], return_index=True)[1]]
