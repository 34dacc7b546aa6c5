"""The result of a short training that was submitted in test mode."""

from __future__ import annotations

from typing import NamedTuple

from detslurm.store import TrialRow


class TrialCheck(NamedTuple):
    """A step that a trial must pass before its experiment is worth queueing.

    Attributes:
        name: "training", "validation" or "checkpoint".
        passed: Whether the trial passed.
        text: Its result, or the missing part.
    """

    name: str
    passed: bool
    text: str


def checks(trial: TrialRow, metric: str | None) -> list[TrialCheck]:
    """The checks of training, validation by `metric`, and checkpoint, of a trial that has ended."""
    return [_training(trial), _validation(trial, metric), _checkpoint(trial)]


def _training(trial: TrialRow) -> TrialCheck:
    steps = trial.steps
    text = f"{steps} batch{'' if steps == 1 else 'es'}" if steps else "no metrics were reported"
    return TrialCheck("training", steps > 0, text)


def _validation(trial: TrialRow, metric: str | None) -> TrialCheck:
    best, last = trial.best_validation, trial.last_validation
    if best is not None and best.value is not None:
        return TrialCheck("validation", True, f"{metric} {best.value:.6g}")
    if last is None:
        return TrialCheck("validation", False, "no validation metrics were reported")
    names = ", ".join(last.metrics) or "nothing"
    return TrialCheck("validation", False, f"searcher.metric is {metric}; reported were: {names}")


def _checkpoint(trial: TrialRow) -> TrialCheck:
    saved = trial.latest_checkpoint
    missing = "none was saved: a preemption would lose the training"
    return TrialCheck("checkpoint", saved is not None, saved.uuid if saved else missing)
