"""`detslurm experiment list-trials`: an experiment's trials, the best first where asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, experiment_id
from detslurm.cli.experiment import description
from detslurm.cli.experiment.description import COURSE, IDENTITY, hparams_column
from detslurm.cli.experiment.diagnostics import reported_metrics
from detslurm.cli.experiment.pareto import objective_columns, status_data, statuses_of
from detslurm.cli.output.printing import Column, Table, shows
from detslurm.sdk.enums import OrderBy
from detslurm.sdk.experiments.ordering import best_trials_first, ordered
from detslurm.sdk.parts import as_float, flat, is_number, metric_rank

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.trial import Trial

_KEYS: dict[str, Callable[[Trial], Any]] = {
    "id": lambda trial: trial.id,
    "state": lambda trial: trial.state,
    "batches": lambda trial: trial.row.steps,
    "restarts": lambda trial: trial.row.restarts,
    "started": lambda trial: trial.row.started,
    "ended": lambda trial: trial.row.ended,
}


@click.command("list-trials")
@experiment_id
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only the N best trials by the searcher's metric or --sort-by's, or the first N"
    " by a column. With several objectives those of the Pareto front are the best.",
)
@click.option(
    "--sort-by",
    metavar="METRIC|COLUMN",
    help="Show the best first by METRIC (of the last validation; of the best one for the"
    f" searcher's metric), or sort by {', '.join(_KEYS)}.",
)
@click.option(
    "--smaller-is-better",
    type=bool,
    metavar="true|false",
    help="Take small values of METRIC as the best ones, or large ones. By default as the searcher.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@shows
def list_trials(
    experiment_id: int,
    top: int | None,
    sort_by: str | None,
    smaller_is_better: bool | None,
    reverse: bool,
) -> Table:
    """List the trials of an experiment.

    \b
    Examples:
      detslurm experiment list-trials 7
      detslurm experiment list-trials last --top 5
      detslurm experiment list-trials 7 --sort-by accuracy --smaller-is-better false --csv
    """
    experiment = client().experiment(experiment_id)
    smaller = experiment.view.smaller_is_better if smaller_is_better is None else smaller_is_better
    metric = experiment.view.metric
    if sort_by is not None and sort_by not in _KEYS:
        metric = sort_by
    trials = experiment.trials()
    if sort_by in _KEYS:
        order = OrderBy.DESCENDING if reverse else OrderBy.ASCENDING
        trials = ordered(trials, _KEYS[sort_by], order)[:top]
    else:
        if top is not None or sort_by is not None:
            trials = _best_first(experiment, trials, metric, smaller=smaller)[:top]
        if reverse:  # of a metric the best ones stay, whichever comes first
            trials = trials[::-1]
    found = statuses_of(experiment)

    def data() -> list[dict[str, Any]]:
        return [description.trial_row(t) | status_data(found.get(t.id)) for t in trials]

    shown = [Column(metric or "Metric", lambda trial: metric_value(trial, metric), least=13)]
    if metric == experiment.view.metric:
        shown = objective_columns(experiment, found) or shown
    return Table(_columns(shown, trials), trials, data)


def _best_first(
    experiment: Experiment, trials: Sequence[Trial], metric: str | None, *, smaller: bool
) -> list[Trial]:
    """The trials that have the metric; where several objectives decide, front by front."""
    if metric == experiment.view.metric and experiment.row.objectives is not None:
        by_id = {trial.id: trial for trial in trials if trial.row.best_validation is not None}
        rows = (trial.row for trial in by_id.values())
        return [by_id[row.id] for row in best_trials_first(rows, experiment.row)]

    values = ((metric_value(trial, metric), trial) for trial in trials)
    rated = [(metric_rank(value, smaller), trial) for value, trial in values if value is not None]
    if trials and not rated and metric is not None:
        _refuse_unknown(trials, metric)
    return [trial for _, trial in sorted(rated, key=lambda pair: pair[0])]


def metric_value(trial: Trial, metric: str | None) -> float | None:
    """A metric of the trial's last validation; the searcher's metric of its best validation."""
    row = trial.row
    if metric == trial.experiment.view.metric:
        return row.best_validation.value if row.best_validation else None
    metrics = row.last_validation.metrics if row.last_validation else {}
    return next((as_float(v) for name, v in flat(metrics) if name == metric and is_number(v)), None)


def _refuse_unknown(trials: Sequence[Trial], metric: str) -> None:
    found = [trial.row.last_validation for trial in trials if trial.row.last_validation]
    leaves = (leaf for validation in found for leaf in flat(reported_metrics(validation)))
    names = sorted({name for name, value in leaves if is_number(value)})
    if metric in names:
        return
    known = f"they have {', '.join(names)}" if names else "no trial has validated yet"
    columns = ", ".join(_KEYS)
    raise click.UsageError(f"no validation has a metric {metric!r}: {known} (columns: {columns})")


def _columns(shown: list[Column], trials: Sequence[Trial]) -> list[Column]:
    def best_at(trial: Trial) -> int | None:
        best = trial.row.best_validation
        return best.steps if best is not None else None

    return [
        *IDENTITY,
        hparams_column(trials),
        *shown,
        Column("Best At", best_at, drop=4),
        *(column for column in COURSE if column.header != "Best Validation"),
    ]
