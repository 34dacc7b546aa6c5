"""How checkpoints are shown, wherever they are listed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from detslurm.cli.output.printing import Column, Table
from detslurm.cli.output.tables import columns_text

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint

_NARROW = 9  # 8 characters of a UUID and an ellipsis: commands take them


def state(checkpoint: Checkpoint) -> str:
    """The state as lists show it: DAMAGED where files are missing or have changed."""
    damaged = checkpoint.problem and checkpoint.state not in ("DELETED", "UNKNOWN")
    return "DAMAGED" if damaged else checkpoint.state


def columns(
    metric: str | None = None,
    *,
    experiments: bool = False,
    objectives: Sequence[str] = (),
    front: Container[str] = (),
) -> list[Column]:
    """The columns of a list; with `metric` that one's values instead of the searcher's, or instead
    of those of all `objectives` and the `front`."""
    by_experiment = [Column("Exp. ID", lambda c: c.experiment_id, drop=2)] if experiments else []
    return [
        Column("UUID", lambda c: c.uuid, least=_NARROW),
        *by_experiment,
        Column("Trial ID", lambda c: c.trial_id),
        Column("# of Batches", lambda c: c.steps_completed),
        Column("State", state, "state"),
        Column("Kind", lambda c: c.kind, drop=6),
        *_results(metric, objectives, front),
        Column("Size", lambda c: c.size, "size"),
        Column("Time", lambda c: c.report_time, "time", drop=3),
        Column("Path", lambda c: c.location, drop=5),
        Column("Problem", lambda c: c.problem, drop=4),
    ]


def _results(metric: str | None, objectives: Sequence[str], front: Container[str]) -> list[Column]:
    if metric is not None or not objectives:
        return [Column(metric or "Validation Metric", lambda c: value(c, metric), drop=1)]

    def values(name: str) -> Column:
        return Column(name, lambda c: value(c, name), drop=1)

    return [*map(values, objectives), Column("Pareto", lambda c: "front" * (c.uuid in front))]


def value(checkpoint: Checkpoint, metric: str | None) -> float | None:
    """A checkpoint's validation metric, by default the searcher's."""
    if metric is None:
        return checkpoint.searcher_metric
    return checkpoint.validation_metrics.get(metric)


def as_rows(
    found: Sequence[Checkpoint],
    metric: str | None = None,
    *,
    experiments: bool = False,
    front: Container[str] = (),
) -> Table:
    """A list of checkpoints; `front` has the ids of those on their experiment's Pareto front."""
    several = {one.objectives.names if one.objectives else () for one in found}
    objectives = several.pop() if len(several) == 1 else ()
    return Table(
        columns(metric, experiments=experiments, objectives=objectives, front=front),
        found,
        lambda: [data(one, metric) | _front_data(one, front) for one in found],
    )


def _front_data(checkpoint: Checkpoint, front: Container[str]) -> dict[str, bool]:
    return {} if checkpoint.objectives is None else {"front": checkpoint.uuid in front}


def as_table(found: Iterable[Checkpoint]) -> str:
    """A list of checkpoints as text, as a part of something else."""
    return columns_text(columns(), list(found))


def data(checkpoint: Checkpoint, metric: str | None = None) -> dict[str, Any]:
    """A checkpoint as a row of JSON."""
    return {
        "uuid": checkpoint.uuid,
        "experiment": checkpoint.experiment_id,
        "trial": checkpoint.trial_id,
        "steps": checkpoint.steps_completed,
        "state": checkpoint.state,
        "time": checkpoint.report_time,
        "size": checkpoint.size,
        "validation_metric": value(checkpoint, metric),
        "validation_metrics": checkpoint.validation_metrics,
        "path": checkpoint.location,
        "problem": checkpoint.problem,
        "kind": checkpoint.kind or "checkpoint",
    }
