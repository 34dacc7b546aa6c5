"""The metrics of a trial that trains: what was read is kept, and only what is new is read."""

from __future__ import annotations

import math
from collections.abc import Sequence

from detslurm.look.plot import Line
from detslurm.store import TrialDir, fs
from detslurm.store.run_series import LoggedRuns, SeriesCache, read_runs
from detslurm.store.trial import Run, with_history
from detslurm.store.trial_fold import resumed_steps

Metric = tuple[str, str]
"""A group of reports, and a metric's name; that of a nested one is dotted."""

NO_LINE = Line([], [], [])


class LiveCurves:
    """The clean curves of a trial's metrics.

    Args:
        trial: The trial.
    """

    def __init__(self, trial: TrialDir) -> None:
        self._trial = trial
        self._cache: SeriesCache = {}
        self._logged: LoggedRuns | None = None
        self._compacted: dict[Metric, Line] | None = None

    def read(self) -> None:
        """Take in what is new. Raises StoreFault."""
        if self._compacted is None and fs.exists(self._trial.metrics_path):  # it is over
            self._compacted = _compacted(self._trial)
        if self._compacted is None:
            self._logged = read_runs(self._trial, self._cache)

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that were reported."""
        if self._compacted is not None:
            return [*self._compacted]
        return [] if self._logged is None else self._logged.keys

    def line(self, metric: Metric) -> Line:
        """The curve of a metric as it was read last; without points if there is none."""
        if self._compacted is not None:
            return self._compacted.get(metric, NO_LINE)
        return NO_LINE if self._logged is None else _joined(self._logged, metric)


def _compacted(trial: TrialDir) -> dict[Metric, Line] | None:
    """The curves as they were thinned at the end; None where the logs know more."""
    from detslurm.store.overviews import overviews  # h5py is slow to import

    found = overviews([trial]).get(trial.id)
    if found is None:
        return None
    runs = with_history(trial.runs())
    return {
        (one.group, one.metric): _marked(one.steps.tolist(), one.values.tolist(), runs)
        for one in found
    }


def _joined(logged: LoggedRuns, metric: Metric) -> Line:
    """The points of all runs that stand, by step; of several at one step the last."""
    found: dict[int, float] = {}
    for run, part in logged.parts.items():
        if points := part.points.get(metric):
            limit = logged.limits.get(run, -math.inf)
            pairs = zip(points.steps, points.values, strict=True)
            found |= {steps: value for steps, value in pairs if steps <= limit}
    steps = sorted(found)
    return _marked(steps, [found[at] for at in steps], logged.runs)


def _marked(steps: Sequence[int], values: Sequence[float], runs: Sequence[Run]) -> Line:
    resumed = [resumed_steps(run.start) for run in runs if run.number > 1]
    return Line(steps, values, [at for at in resumed if steps and steps[0] <= at <= steps[-1]])
