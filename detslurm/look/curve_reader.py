"""Reading the curves of a document so that memory and the document stay small.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from detslurm.look.document import MAX_POINTS, Curve
from detslurm.look.plain import finite
from detslurm.look.profiles import profile_series
from detslurm.look.thinning import curve, fewer, points_per_curve
from detslurm.store.overviews import overviews
from detslurm.store.series import Series, SeriesCache, logged_series

if TYPE_CHECKING:
    from detslurm.sdk import Trial


class CurveReader:
    """Takes in trial after trial; how many points each curve may have is known at the end."""

    def __init__(self, caches: dict[int, SeriesCache]) -> None:
        self._caches = caches
        self._counts: list[int] = []
        self._most, self._judged = MAX_POINTS, 0
        self._overviews: dict[int, list[Series]] = {}
        self._metrics: dict[int, list[Series]] = {}
        self._profiles: dict[int, list[Series]] = {}

    def prepare(self, trials: Sequence[Trial]) -> None:
        """Take in what is compacted of an experiment's trials."""
        self._overviews |= overviews([trial.directory for trial in trials])

    def read(self, trial: Trial, profiled: bool | None) -> None:
        """Take in a trial's curves; `profiled` as far as that is known."""
        found = self._overviews.pop(trial.id, None)
        if found is None:
            cache = self._caches.setdefault(trial.id, {})
            found = logged_series(trial.directory, cache)
            profiled = any(run.profiled for run in cache.values())
        self._metrics[trial.id] = self._taken(found)
        if profiled is not False:
            self._profiles[trial.id] = self._taken(profile_series(trial.profile()))

    def _taken(self, found: Sequence[Series]) -> list[Series]:
        self._counts += [len(series.values) for series in found]
        # What is known by now bounds what the end will say; judged now and then, for all of them
        # are looked at.
        if len(self._counts) >= 2 * self._judged:
            self._most, self._judged = points_per_curve(self._counts), len(self._counts)
        return [fewer(series, self._most) for series in found]

    @cached_property
    def _final(self) -> int:
        return points_per_curve(self._counts)

    def parts(self, trial_id: int) -> dict[str, Any]:
        """The fields of a trial's part that hold its curves."""
        metrics = self._metrics.get(trial_id, [])
        return {
            "summary": {f"{m.group}/{m.metric}": finite(float(m.values[-1])) for m in metrics},
            "curves": self._curves(metrics),
            "profile": self._curves(self._profiles.get(trial_id, [])),
        }

    def _curves(self, found: Iterable[Series]) -> list[Curve]:
        return [curve(fewer(series, self._final)) for series in found]
