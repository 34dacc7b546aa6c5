"""Curves thinned when an experiment is compacted: what a page shows of 100 million points is small.

Of each metric the compacted file has the points of all trials in one table, and how many points
each trial had. docs/store.md describes the layout. Needs h5py: other modules import this one where
they use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import h5py
import numpy as np

from detslurm.store.compacted import is_current, open_compacted
from detslurm.store.series import Series
from detslurm.store.thinning import BucketMeans, means_of, parts_of, thinned
from detslurm.store.trial import TrialDir

MOST: Final = 1000
"""The most points of one metric of one trial."""

_POINT: Final = np.dtype(
    [("trial", np.int64), ("steps", np.int64), ("time", np.float64), ("value", np.float64)]
)

_MEAN: Final = np.dtype(
    [("trial", np.int64), ("steps", np.float64), ("time", np.float64), ("value", np.float64),
     ("count", np.int64)]
)  # fmt: skip


def points_of(trial: int, steps: Any, times: Any, values: Any) -> Any:
    """One trial's curve as rows of the table."""
    places = thinned(steps, values, MOST)
    rows = np.empty(len(places), dtype=_POINT)
    rows["trial"] = trial
    rows["steps"], rows["time"], rows["value"] = steps[places], times[places], values[places]
    return rows


def means_rows(trial: int, steps: Any, times: Any, values: Any) -> Any:
    """The means of a curve that `points_of` thins, as rows of their table; else none."""
    if len(values) <= MOST:
        return np.empty(0, dtype=_MEAN)
    means = means_of(steps, values, times, parts_of(MOST))
    rows = np.empty(len(means.steps), dtype=_MEAN)
    rows["trial"], rows["count"] = trial, means.counts
    rows["steps"], rows["time"], rows["value"] = means.steps, means.times, means.values
    return rows


def overviews(trials: Sequence[TrialDir]) -> dict[int, list[Series]]:
    """The thinned curves of trials of one experiment by their ids; those are left out whose
    compacted metrics don't exist, or are older than their runs."""
    if not trials or (file := open_compacted(trials[0])) is None:
        return {}
    with file:
        places = _places(file)
        found: dict[int, list[Series]] = {
            trial.id: []
            for trial in trials
            if trial.id in places and is_current(file, trial, places[trial.id])
        }
        for folder in file["groups"].values():
            for metric in folder["overview"].values():
                for trial_id, series in _series_of(metric, str(folder.attrs["name"]), places):
                    if trial_id in found:
                        found[trial_id].append(series)
    return found


def _places(file: h5py.File) -> dict[int, int]:
    return {trial: place for place, trial in enumerate(file["trials/id"][:].tolist())}


def _series_of(metric: Any, group: str, places: Mapping[int, int]) -> Iterator[tuple[int, Series]]:
    """Each trial's part of a metric's table."""
    name, counts = str(metric.attrs["name"]), metric["counts"][:].tolist()
    means = {trial: _means(rows) for trial, rows in _by_trial(metric["means"][:])}
    for trial, part in _by_trial(metric["points"][:]):
        arrays = (part["steps"], part["value"], part["time"])
        about = (counts[places[trial]], means.get(trial))
        yield trial, Series(group, name, *arrays, *about)


def _by_trial(rows: Any) -> Iterator[tuple[int, Any]]:
    starts = np.flatnonzero(np.diff(rows["trial"], prepend=-1)).tolist()
    for first, last in zip(starts, [*starts[1:], len(rows)], strict=False):
        yield int(rows["trial"][first]), rows[first:last]


def _means(rows: Any) -> BucketMeans:
    return BucketMeans(rows["steps"], rows["value"], rows["time"], rows["count"])
