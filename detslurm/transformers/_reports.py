"""What the Trainer logs, as reports of the trial."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
        self._reported: dict[str, tuple[int, set[str]]] = {}
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
        last, names = self._reported.get(group, (step, set()))
        known = names if last == step else set()
        chosen = {
            name: value
            for name, value in metrics.items()
            if name not in known and (self._names is None or name in self._names)
        }
        if again := known.intersection(metrics) - {"epoch"}:
            logger.info("%s at step %d: %s stay as reported before", group, step, sorted(again))
        if not chosen:
            return
        self._reported[group] = step, known | chosen.keys()
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
