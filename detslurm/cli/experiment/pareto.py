"""The Pareto front in tables and in JSON, where a search has several objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detslurm.cli.output.printing import Column, number

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.experiments.pareto import Standing
    from detslurm.sdk.parts import ExperimentRow, SeveralObjectives

Standings = Mapping[int, "Standing"]


def standings_of(experiment: Experiment) -> Standings:
    """Where each trial stands, by id; empty for a search that one metric decides."""
    if experiment.row.objectives is None:
        return {}
    from detslurm.sdk.experiments.pareto import standings

    return standings(experiment.row, experiment.trial_rows)


def objective_columns(experiment: Experiment, standings: Standings) -> list[Column]:
    """A column for each metric and constraint, and one for the front; none for a single metric."""
    several = experiment.row.objectives
    if several is None:
        return []

    def values(name: str) -> Column:
        return Column(name, lambda trial: standings[trial.id].values[name], least=9)

    return [*map(values, several.names), Column("Pareto", lambda t: mark(standings[t.id]))]


def mark(standing: Standing) -> str:
    """What is to be said of a trial: it is on the front, or breaks a constraint."""
    if standing.front:
        return "front"
    return "infeasible" if standing.feasible is False else ""


def objectives_text(several: SeveralObjectives) -> str:
    """The metrics and the constraints in a line."""
    orders = {True: "smaller", False: "larger"}
    metrics = [f"{one.name} ({orders[one.smaller_is_better]} is better)" for one in several.metrics]
    bounds = [f"{name} {bound}" for name, bound in several.constraints.items()]
    return ", ".join([*metrics, *bounds])


def best_text(several: SeveralObjectives, standing: Standing) -> str:
    """The values of the best trial in a line."""
    return ", ".join(f"{name} {number(standing.values[name])}" for name in several.names)


def front_text(standings: Standings) -> str:
    """The trials on the front."""
    found = [str(trial) for trial, standing in standings.items() if standing.front]
    if not found:
        return "no trial keeps all constraints" if standings else ""
    return f"trial{'s' * (len(found) > 1)} {', '.join(found)}"


def row_data(row: ExperimentRow) -> dict[str, Any]:
    """An experiment's row for JSON, without `objectives` where one metric decides."""
    names = (n for n in row.__struct_fields__ if n != "objectives" or row.objectives is not None)
    return {name: getattr(row, name) for name in names}


def standing_data(standing: Standing | None) -> dict[str, Any]:
    """The fields of a trial in JSON; none for a search that one metric decides."""
    if standing is None:
        return {}
    return {
        "objectives": standing.values,
        "front": standing.front,
        "feasible": standing.feasible,
    }
