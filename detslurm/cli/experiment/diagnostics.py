"""Advice about an experiment beyond its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detslurm._base import contract
from detslurm._base.quantities import counted
from detslurm.sdk.functions.packing import METRIC
from detslurm.sdk.parts import StoreError

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.parts import ValidationView
    from detslurm.sdk.trials.trial import Trial


def diagnostics(experiment: Experiment) -> list[str]:
    """Why trials wait, each reason once, and what makes a search useless."""
    view, reasons = experiment.view, dict[str, None]()
    for trial in experiment.trials():
        status = trial.job_status
        if status and status.message and (status.alive is None or _held_for_nothing(trial)):
            reasons[f"trial {trial.id}: {status.message}"] = None
    lines = list(reasons)[:10] + (["..."] if len(reasons) > 10 else [])
    if experiment.search is not None:
        # The next worker takes over from an ended worker: the user must act only for the last.
        known = experiment.message if experiment.message != experiment.reason else None
        lines = [known] if known else lines
    elif lines and not view.finished:
        number = view.id
        lines.append(f"`detslurm e activate {number}` queues it again, `e kill {number}` ends it.")
    if view.desired.paused or view.desired.stopping == "cancel":
        lines += filter(None, [experiment.running_on()])
    lines += filter(None, (_refused_samples(experiment), unknown_metric(experiment)))
    lines += [f"{p.path}, byte {p.offset}: {p.reason} (skipped)" for p in view.problems]
    return ["\n".join(lines)] if lines else []


def _refused_samples(experiment: Experiment) -> str | None:
    """A message if the code refused too many samples, so that the search gave up."""
    view, rows = experiment.view, experiment.trial_rows
    refused = [row for row in rows if row.invalid]
    if not refused or not view.finished or view.desired.stopping:
        return None
    why = f"the last one: {refused[-1].end_reason}"
    if len(refused) == len(rows):
        return f"No trial had valid hyperparameters, nothing was trained; {why}."
    wanted = _max_trials(experiment)
    if len(rows) - len(refused) >= wanted:
        return None
    valid = f"{len(rows) - len(refused)} of {counted(wanted, 'trial')} had valid hyperparameters"
    return f"Only {valid}: the search gave up after {len(refused)} that were refused; {why}."


def _max_trials(experiment: Experiment) -> int:
    try:
        return experiment.config["searcher"].get("max_trials") or 0
    except StoreError:
        return 0


def unknown_metric(experiment: Experiment) -> str | None:
    """A message if no validation has the searcher's metric: nothing fails, but a misspelt metric
    costs a whole search. The metric "none" is never reported."""
    view = experiment.view
    if view.metric in (None, "none") or view.best_trial is not None or not experiment.managed:
        return None
    last = [trial.row.last_validation for trial in experiment.trials()]
    names = sorted(
        {name for found in last if found is not None for name in reported_metrics(found)}
    )
    if view.metric in names:
        return f"The searcher's metric {view.metric} is not a number in the last validations."
    if names:
        return f"No validation has the searcher's metric {view.metric}: only {', '.join(names)}."
    if experiment.search is not None and view.finished:
        unseen = f"No trial has reported {view.metric}: the search had nothing to compare"
        return f"{unseen}{_recorded(experiment)}."
    if view.state == "COMPLETED" and _is_to_report(experiment):
        return f"No trial has reported {view.metric}{_recorded(experiment)}."
    return None


def _recorded(experiment: Experiment) -> str:
    """The metrics that `record` found in the last trial's training, for a text about others."""
    try:
        config = experiment.config
        if not (config.get("record") or config.get("metrics_from_log")):
            return ""
        names = sorted(experiment.trials()[-1].metrics("training").metrics)
    except (StoreError, IndexError):
        return ""
    return f"; recorded were {', '.join(names) or 'no others either'}"


def _is_to_report(experiment: Experiment) -> bool:
    """Whether its code is to validate: functions don't, and `--test-mode` reports gaps itself."""
    if experiment.view.metric == METRIC:
        return False
    try:
        variables = experiment.config["environment"]["environment_variables"]["cpu"]
    except StoreError:
        return False
    # The values of variables are hidden.
    return contract.TEST_MODE not in {variable.partition("=")[0] for variable in variables}


def reported_metrics(validation: ValidationView) -> dict[str, Any]:
    """The metrics of the user's code, without those that a Trainer adds for searches."""
    return {k: v for k, v in validation.metrics.items() if k not in ("batches", "epochs")}


def _held_for_nothing(trial: Trial) -> bool:
    status = trial.job_status
    held = status is not None and status.job is not None and status.job.held
    return held and not trial.experiment.view.desired.paused
