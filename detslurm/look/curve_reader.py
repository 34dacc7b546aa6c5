"""Reading the curves of a document so that memory and the document stay small.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from detslurm.look.document import MAX_POINTS, CurveBudget, Number, Snapshot, TrialPart
from detslurm.look.plain import finite
from detslurm.look.thinning import curve, fewer, points_per_curve
from detslurm.store import ProfileRow, Series, SeriesCache, flat, is_number, logged_series
from detslurm.store.overviews import overviews

if TYPE_CHECKING:
    from detslurm.sdk import Trial


class CurveReader:
    """Takes in trial after trial; how many points each curve may have is known at the end."""

    def __init__(self, caches: dict[int, SeriesCache] | None, budget: CurveBudget) -> None:
        self._caches = caches
        self._budget = budget
        self._counts: list[int] = []
        self._most, self._judged = MAX_POINTS, 0
        self._overviews: dict[int, list[Series]] = {}
        self._metrics: dict[int, list[Series]] = {}
        self._profiles: dict[int, list[Series]] = {}

    def prepare(self, trials: Sequence[Trial]) -> None:
        """Take in the compacted part of an experiment's trials."""
        self._overviews |= overviews([trial.directory for trial in trials])

    def read(self, trial: Trial, profiled: bool | None) -> None:
        """Take in a trial's curves; `profiled` as far as that is known."""
        found = self._overviews.pop(trial.id, None)
        if found is None:
            cache: SeriesCache = {}  # of this one look
            if self._caches is not None:
                cache = self._caches.setdefault(trial.id, cache)
            found = logged_series(trial.directory, cache)
            profiled = any(run.profiled for run in cache.values())
        self._metrics[trial.id] = self._taken(found)
        if profiled is not False:
            self._profiles[trial.id] = self._taken(profile_series(trial.profile()))

    def _taken(self, found: Sequence[Series]) -> list[Series]:
        self._counts += [len(series.values) for series in found]
        # The counts so far bound the final ones; judged now and then, because each judgement looks
        # at all of them.
        if len(self._counts) >= 2 * self._judged:
            self._most = points_per_curve(self._counts, self._budget)
            self._judged = len(self._counts)
        return [fewer(series, self._most) for series in found]

    def summary(self, trial_id: int) -> dict[str, Number]:
        """The last value of each metric of a trial, named "group/metric"."""
        metrics = self._metrics.get(trial_id, ())
        return {f"{one.group}/{one.metric}": finite(float(one.values[-1])) for one in metrics}

    def with_curves(self, taken: Snapshot, length: int) -> Snapshot:
        """The document with its curves; it has `length` bytes without them."""
        most = points_per_curve(self._counts, self._budget, length)
        experiments = [
            replace(part, trials=[self._with_curves(trial, most) for trial in part.trials])
            for part in taken.experiments
        ]
        return replace(taken, experiments=experiments)

    def _with_curves(self, trial: TrialPart, most: int) -> TrialPart:
        metrics, profile = (
            [curve(fewer(series, most)) for series in found.get(trial.id, ())]
            for found in (self._metrics, self._profiles)
        )
        return replace(trial, curves=metrics, profile=profile)


def profile_series(rows: Sequence[ProfileRow]) -> list[Series]:
    """Each figure of each node; `rows` are in the order of time.

    The metrics are named "node.figure", and "node.device.figure" where a node has several such
    things. In the place of steps are whole seconds since the first row.
    """
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in flat(row.metrics):
            if is_number(value):
                key = (row.group, f"{row.node}.{name}")
                points.setdefault(key, []).append((row.time, float(value)))
    return [_series(key, found, rows[0].time) for key, found in points.items()]


def _series(key: tuple[str, str], points: Sequence[tuple[float, float]], begin: float) -> Series:
    times, values = np.array(points).T
    return Series(*key, (times - begin).astype(np.int64), values, times, len(points))
