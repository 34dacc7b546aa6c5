"""One metric of a trial that trains: what was read is kept, and only what is new is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from detslurm.look.plot import Line
from detslurm.store import TrialDir, fs, metric_columns
from detslurm.store.columns import is_number
from detslurm.store.curve import Span, flat, last_valid_steps
from detslurm.store.errors import CorruptRecord
from detslurm.store.log_lines import line_rows
from detslurm.store.reading import counted_bytes
from detslurm.store.run_log import lines_of
from detslurm.store.trial import Run, with_history
from detslurm.store.trial_fold import resumed_steps


@dataclass
class _Part:
    """What was read of a run up to byte `end`: the metric by step, and its first step of all."""

    end: int = 0
    first: float = math.inf
    values: dict[int, float] = field(default_factory=dict)


class LiveCurve:
    """The clean curve of one metric.

    Args:
        trial: The trial.
        group: The group of the reports.
        name: The metric's name; a nested one is dotted.
    """

    def __init__(self, trial: TrialDir, group: str, name: str) -> None:
        self._trial, self._group, self._name = trial, group, name
        self._parts: dict[int, _Part] = {}
        self._whole: Line | None = None

    def read(self) -> Line:
        """The curve as it is now. Raises StoreFault."""
        if self._whole is not None:
            return self._whole
        runs = with_history(self._trial.runs())
        if fs.exists(self._trial.metrics_path):  # the experiment is over
            columns = metric_columns(self._trial, self._group, [self._name])
            values = columns.metrics.get(self._name, ())
            steps = columns.steps if len(values) else ()
            self._whole = _marked([*map(int, steps)], [*map(float, values)], runs)
            return self._whole
        bounds = counted_bytes(runs)
        for run in runs:
            self._read_on(run.number, bounds.get(run.number))
        return self._clean(runs)

    def _read_on(self, run: int, limit: int | None) -> None:
        part = self._parts.setdefault(run, _Part())
        if limit is not None and limit < part.end:  # a later run has cut off what was read
            part = self._parts[run] = _Part()
        for offset, line in lines_of(str(self._trial.records_path(run)), limit, part.end, []):
            part.end = offset + len(line) + 1
            with suppress(CorruptRecord):  # the trial's problems name it
                self._take(part, line)

    def _take(self, part: _Part, line: bytes) -> None:
        for row in line_rows(line, 0):
            part.first = min(part.first, row.steps)
            if row.group == self._group:
                value = dict(flat(row.metrics)).get(self._name)
                if value is not None and is_number(value):
                    part.values[row.steps] = float(value)

    def _clean(self, runs: Sequence[Run]) -> Line:
        spans = [
            Span(run.number, resumed_steps(run.start), self._parts[run.number].first)
            for run in runs
        ]
        found: dict[int, float] = {}
        for run, limit in last_valid_steps(spans).items():
            values = self._parts[run].values
            found |= {steps: value for steps, value in values.items() if steps <= limit}
        steps = sorted(found)
        return _marked(steps, [found[at] for at in steps], runs)


def _marked(steps: Sequence[int], values: Sequence[float], runs: Sequence[Run]) -> Line:
    resumed = [resumed_steps(run.start) for run in runs if run.number > 1]
    return Line(steps, values, [at for at in resumed if steps and steps[0] <= at <= steps[-1]])
