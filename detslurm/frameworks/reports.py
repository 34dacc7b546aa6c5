"""A framework's logs as reports of the trial."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detslurm.core._reported_steps import ReportedSteps

if TYPE_CHECKING:
    from detslurm.core import TrainContext


class Reports:
    """The chief's reports: no metric is reported twice at a step.

    A framework may evaluate several data sets one after the other, each with metrics of its own,
    and a search judges by a single report: `flush` makes it of all of them. `validation` has what
    was evaluated last.
    """

    def __init__(
        self, train: TrainContext, names: Sequence[str] | None, logger: logging.Logger
    ) -> None:
        self._train = train
        self._names = frozenset(names) if names is not None else None
        self._logger = logger
        self._reported: defaultdict[str, ReportedSteps] = defaultdict(ReportedSteps)
        self._step: int | None = None  # of an evaluation that is not reported yet
        self.validation: dict[str, Any] = {}

    def evaluated(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keep the metrics of one data set for the report of the whole evaluation."""
        if self._step is None:
            self.validation = {}
        self._step = step
        self.validation |= metrics

    def flush(self) -> None:
        """Report the evaluation that was kept, if any."""
        if self._step is not None:
            step, self._step = self._step, None
            self.report("validation", step, self.validation)

    def report(self, group: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics, but for those that were reported at this step before."""
        reported = self._reported[group]
        names = metrics.keys() if self._names is None else metrics.keys() & self._names
        again = set(reported.repeated(step, names))
        if left_out := again - {"epoch"}:
            text = "%s metrics at step %d stay as they were reported before: %s"
            self._logger.warning(text, group, step, ", ".join(sorted(left_out)))
        chosen = {name: metrics[name] for name in metrics if name in names - again}
        if not chosen:
            return
        reported.add(step, chosen.keys())
        if group == "training":
            self._train.report_training_metrics(step, chosen)
        elif group == "validation":
            self._train.report_validation_metrics(step, chosen)
        else:
            self._train.report_metrics(group, step, chosen)
