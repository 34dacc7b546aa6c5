"""Where the trials of a search with several objectives stand: on the Pareto front or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from detslurm.sdk.experiments.ordering import results_of
from detslurm.store import ExperimentRow, TrialRow, objectives_of


class ParetoStatus(NamedTuple):
    """How a trial is compared with the others.

    Attributes:
        values: The metrics and constraints by name, of its best validation; None if one is missing.
        front: Whether it is on the Pareto front.
        feasible: Whether it keeps all constraints; None if it has no result yet.
    """

    values: dict[str, Any]
    front: bool = False
    feasible: bool | None = None


def pareto_statuses(experiment: ExperimentRow, rows: Iterable[TrialRow]) -> dict[int, ParetoStatus]:
    """Return where each trial stands, by id; empty for a search that one metric decides."""
    several = experiment.objectives
    if several is None:
        return {}
    comparison, trials = several.comparison(), list(rows)
    front = {row.id for row in comparison.front(results_of(trials))}
    found = {row.id: ParetoStatus(dict.fromkeys(several.names)) for row in trials}
    for metrics, row in results_of(trials):
        result = comparison.result(metrics)
        feasible = None if result is None else not result.violation
        values = {name: metrics.get(name) for name in several.names}
        found[row.id] = ParetoStatus(values, row.id in front, feasible)
    return found


def front_columns(status: ParetoStatus) -> dict[str, Any]:
    """Return the cells of a trial in exported tables."""
    best = {f"best_{name}": value for name, value in status.values.items()}
    return {**best, "front": status.front, "feasible": status.feasible}


def front_ids(experiment: ExperimentRow, rows: Iterable[TrialRow]) -> list[int]:
    """Return the ids of the trials on the Pareto front, by the first metric; with a single metric
    of all trials that have its best value."""
    smaller = experiment.smaller_is_better
    several = objectives_of(experiment.metric, experiment.objectives, smaller_is_better=smaller)
    if several is None:
        return []
    return [row.id for row in several.comparison().front(results_of(rows))]
