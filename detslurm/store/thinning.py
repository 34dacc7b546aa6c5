"""Fewer points of a curve that look like all of them: the extremes of each bucket of steps.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

LEAST: Final = 16
"""The smallest number of points that a curve can be thinned to."""


class BucketMeans(NamedTuple):
    """Means over parts of a curve that follow each other; all are arrays of numpy."""

    steps: Any  # the mean of the steps of each part's points
    values: Any  # the mean of their values
    times: Any  # the mean of their times; NaN where any of them is unknown
    counts: Any  # how many points each part has


def means_of(steps: Any, values: Any, times: Any, parts: int) -> BucketMeans:
    """The means of the finite values in each of `parts` buckets of steps of equal width.

    Buckets without a finite value are left out.
    """
    finite = np.isfinite(values)
    ones = np.ones(np.count_nonzero(finite))
    return fewer_means(BucketMeans(steps[finite], values[finite], times[finite], ones), parts)


def fewer_means(means: BucketMeans, parts: int) -> BucketMeans:
    """Parts taken together to at most `parts`: again the means of all their points."""
    if len(means.steps) == 0:
        return means
    starts = _starts(means.steps, parts)
    counts = np.add.reduceat(means.counts, starts)
    with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest float
        steps, values, times = (
            np.add.reduceat(one * means.counts, starts) / counts for one in means[:3]
        )
    return BucketMeans(steps, values, times, counts)


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
    buckets = parts_of(most)
    while len(places := _kept(steps, values, buckets)) > most:
        buckets = max(min(buckets * most // len(places), buckets - 1), 1)
    return places


def _kept(steps: Any, values: Any, buckets: int) -> Any:
    starts = _starts(steps, buckets)
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


def _starts(steps: Any, buckets: int) -> Any:
    """Where each bucket that has a point begins."""
    edges = np.linspace(float(steps[0]), float(steps[-1]) + 1, buckets + 1)
    starts = np.unique(np.append(0, np.searchsorted(steps, edges[1:-1])))
    return starts[starts < len(steps)]  # floats are not exact where steps are beyond 2^53


def parts_of(most: int) -> int:
    """How many buckets a curve of at most `most` points has."""
    return most // 2 - 1


def _first_of_each(bucket: Any, wanted: Any) -> Any:
    """The first place in each bucket where `wanted` is true."""
    places = np.flatnonzero(wanted)
    return places[np.unique(bucket[places], return_index=True)[1]]
