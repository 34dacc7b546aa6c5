"""The Pareto front in tables and in JSON, where a search has several objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detslurm.cli.output.energy import energy_of
from detslurm.cli.output.printing import Column, number
from detslurm.sdk.experiments.pareto import pareto_statuses

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.experiments.pareto import ParetoStatus
    from detslurm.sdk.parts import ExperimentRow, SeveralObjectives

Statuses = Mapping[int, "ParetoStatus"]


def statuses_of(experiment: Experiment) -> Statuses:
    """Where each trial stands, by id; empty for a search that one metric decides."""
    if experiment.row.objectives is None:
        return {}

    return pareto_statuses(experiment.row, experiment.trial_rows)


def objective_columns(experiment: Experiment, statuses: Statuses) -> list[Column]:
    """A column for each metric and constraint, and one for the front; none for a single metric."""
    several = experiment.row.objectives
    if several is None:
        return []

    def values(name: str) -> Column:
        return Column(name, lambda trial: statuses[trial.id].values[name], least=9)

    return [*map(values, several.names), Column("Pareto", lambda t: mark(statuses[t.id]))]


def mark(status: ParetoStatus) -> str:
    """The mark of a trial that is on the front, or that breaks a constraint."""
    if status.front:
        return "front"
    return "infeasible" if status.feasible is False else ""


def objectives_text(several: SeveralObjectives) -> str:
    """The metrics and the constraints in a line."""
    orders = {True: "smaller", False: "larger"}
    metrics = [f"{one.name} ({orders[one.smaller_is_better]} is better)" for one in several.metrics]
    bounds = [f"{name} {bound}" for name, bound in several.constraints.items()]
    return ", ".join([*metrics, *bounds])


def best_text(several: SeveralObjectives, status: ParetoStatus) -> str:
    """The values of the best trial in a line."""
    return ", ".join(f"{name} {number(status.values[name])}" for name in several.names)


def front_text(statuses: Statuses) -> str:
    """The trials on the front."""
    found = [str(trial) for trial, status in statuses.items() if status.front]
    if not found:
        return "no trial keeps all constraints" if statuses else ""
    return f"trial{'s' * (len(found) > 1)} {', '.join(found)}"


def row_data(row: ExperimentRow) -> dict[str, Any]:
    """An experiment's row for JSON, without `objectives` where one metric decides."""
    names = (n for n in row.__struct_fields__ if n != "objectives" or row.objectives is not None)
    return {name: getattr(row, name) for name in names} | {"energy": energy_of(row)}


def status_data(status: ParetoStatus | None) -> dict[str, Any]:
    """The fields of a trial in JSON; none for a search that one metric decides."""
    if status is None:
        return {}
    return {
        "objectives": status.values,
        "front": status.front,
        "feasible": status.feasible,
    }
