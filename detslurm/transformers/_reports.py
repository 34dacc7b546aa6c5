"""What the Trainer logs, as reports of the trial."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detslurm.core._reported_steps import ReportedSteps

if TYPE_CHECKING:
    from detslurm.core import TrainContext

logger = logging.getLogger("detslurm.transformers")

VALIDATION = "validation"
_DURATION = "_runtime"


class Reports:
    """The chief's reports: no metric is reported twice at a step.

    The Trainer evaluates several data sets one after the other, each with metrics of its own, and
    a search judges by a single report: `flush` makes it of all of them. `validation` has what was
    evaluated last. Outside of `training` nothing follows an evaluation, which is reported at once.
    """

    def __init__(self, train: TrainContext, names: Sequence[str] | None) -> None:
        self._train = train
        self._names = frozenset(names) if names is not None else None
        self._reported: defaultdict[str, ReportedSteps] = defaultdict(ReportedSteps)
        self._step: int | None = None  # of an evaluation that is not reported yet
        self.validation: dict[str, Any] = {}
        self.training = False

    def log(self, step: int, logs: Mapping[str, Any]) -> None:
        """Report what was logged, but for evaluations, which come with all of their metrics."""
        if _prefix(logs) in (None, "train"):
            self._report("training", step, logs)

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of one data set: with the prefix "eval" they are the validation's."""
        prefix = _prefix(metrics) or "eval"
        if prefix != "eval" and not prefix.startswith("eval_"):
            self._report(prefix.replace(".", "_"), step, metrics)
            return
        if self._step is None:
            self.validation = {}
        self._step = step
        self.validation |= metrics
        if not self.training:
            self.flush()

    def flush(self) -> None:
        """Report the evaluation that was taken, if there is one."""
        if self._step is not None:
            step, self._step = self._step, None
            self._report(VALIDATION, step, self.validation)

    def _report(self, group: str, step: int, metrics: Mapping[str, Any]) -> None:
        reported = self._reported[group]
        names = metrics.keys() if self._names is None else metrics.keys() & self._names
        again = set(reported.repeated(step, names))
        if left_out := again - {"epoch"}:
            text = "%s metrics at step %d stay as they were reported before: %s"
            logger.warning(text, group, step, ", ".join(sorted(left_out)))
        chosen = {name: metrics[name] for name in metrics if name in names - again}
        if not chosen:
            return
        reported.add(step, chosen.keys())
        if group == "training":
            self._train.report_training_metrics(step, chosen)
        elif group == VALIDATION:
            self._train.report_validation_metrics(step, chosen)
        else:
            self._train.report_metrics(group, step, chosen)


def _prefix(metrics: Mapping[str, Any]) -> str | None:
    """The prefix of the metrics of an evaluation, or of a training that is over: these alone come
    with their duration."""
    durations = (name for name in metrics if name.endswith(_DURATION))
    return next((name.removesuffix(_DURATION) for name in durations), None)
