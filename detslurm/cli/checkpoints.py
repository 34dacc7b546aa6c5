"""Lists of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from detslurm.cli.output import local_time, print_json, table
from detslurm.sdk.sizes import human_size

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment
    from detslurm.sdk.trial import Trial
    from detslurm.store import CheckpointView


class Listed(NamedTuple):
    """A checkpoint and the searcher metric of a validation at exactly its step."""

    checkpoint: CheckpointView
    metric: float | None


def of_trial(trial: Trial) -> list[Listed]:
    """A trial's checkpoints, oldest first."""
    found, name = trial.checkpoints(), trial.experiment.view.metric
    if name is None or not found:
        return [Listed(c, None) for c in found]
    values = {row.steps: row.metrics.get(name) for row in trial.iter_metrics("validation")}
    return [Listed(c, _number(values.get(c.steps))) for c in found]


def of_experiment(experiment: Experiment, best: int | None = None) -> list[Listed]:
    """All checkpoints, or the best by the searcher's metric at exactly their steps."""
    begun = (trial for trial in experiment.trials() if trial.row.run_count)
    found = [listed for trial in begun for listed in of_trial(trial)]
    if best is None:
        return found
    return best_of(found, smaller=experiment.view.smaller_is_better)[:best]


def best_of(found: Iterable[Listed], *, smaller: bool) -> list[Listed]:
    """Those that are there and have a metric, the best first."""
    sign = 1 if smaller else -1
    there = [one for one in found if one.checkpoint.state == "COMPLETED"]
    rated = [one for one in there if one.metric is not None]
    return sorted(rated, key=lambda one: _rank(one.metric, sign))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _rank(value: float | None, sign: int) -> float:
    return math.inf if value is None or math.isnan(value) else sign * value


def show(found: Sequence[Listed], *, as_json: bool) -> None:
    """Print them."""
    if as_json:
        print_json([data(one) for one in found])
    else:
        click.echo(as_table(found))


def as_table(found: Iterable[Listed]) -> str:
    """Them as a table."""
    headers = ["Trial ID", "# of Batches", "State", "Validation Metric", "UUID", "Size", "Time"]
    rows = [
        [c.trial, c.steps, c.state, metric, c.uuid, size(c), local_time(c.time)]
        for c, metric in found
    ]
    return table(headers, rows)


def data(one: Listed) -> dict[str, Any]:
    """A checkpoint for JSON."""
    c = one.checkpoint
    return {
        "uuid": c.uuid,
        "trial": c.trial,
        "run": c.run,
        "steps": c.steps,
        "state": c.state,
        "time": c.time,
        "validation_metric": one.metric,
        "resources": c.resources,
        "metadata": c.metadata,
    }


def size(checkpoint: CheckpointView) -> str:
    """The bytes of all its files, for people."""
    return human_size(sum(v for v in checkpoint.resources.values() if isinstance(v, int)))
