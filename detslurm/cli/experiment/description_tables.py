"""The tables of `experiment describe`: experiments, trials, and their workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.cli.experiment.pareto import statuses_of
from detslurm.cli.output.energy import energy_cells
from detslurm.cli.output.printing import csv_text, plain, table
from detslurm.sdk.parts import fs

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.experiments.pareto import ParetoStatus
    from detslurm.sdk.trials.trial import Trial

Row = Mapping[str, Any]


def write_tables(experiments: Sequence[Experiment], folder: Path) -> list[Path]:
    """Write the three tables as CSV, over those of an earlier call; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, rows in _tables(experiments).items():
        paths.append(folder / f"{name}.csv")
        fs.replace_file(paths[-1], _csv(rows).encode(), sync=False)
    return paths


def tables_csv(experiments: Sequence[Experiment], *, metrics: bool) -> str:
    """The tables as CSV, an empty line between them; workloads only with `metrics`."""
    tables = _tables(experiments, workloads=metrics)
    return "\n".join(_csv(rows) for rows in tables.values()).rstrip("\n")


def workloads_text(experiment: Experiment) -> str:
    """The workloads of an experiment's trials as a table for people."""
    headers, cells = _cells(_tables([experiment])["workloads"])
    return "Workloads:\n" + table(headers, [["" if c is None else c for c in row] for row in cells])


def _tables(
    experiments: Sequence[Experiment], *, workloads: bool = True
) -> dict[str, Sequence[Row]]:
    trials = [trial for one in experiments for trial in one.trials()]
    statuses = {id: found for one in experiments for id, found in statuses_of(one).items()}
    tables: dict[str, Sequence[Row]] = {
        "experiments": [_experiment(one) for one in experiments],
        "trials": [_trial(trial, statuses.get(trial.id)) for trial in trials],
    }
    if workloads:
        tables["workloads"] = [row for trial in trials for row in _workloads(trial)]
    return tables


def _experiment(one: Experiment) -> Row:
    view = one.view
    nested = ("trial_states", "objectives", "energy")
    names = (n for n in view.row().__struct_fields__ if n not in nested)
    data = {name: getattr(view, name) for name in names}
    return {**data, **energy_cells(view), "path": str(one.path)}


def _trial(trial: Trial, status: ParetoStatus | None) -> Row:
    row, best, latest = trial.row, trial.row.best_validation, trial.row.latest_checkpoint
    shown = ("id", "experiment_id", "state", "started", "ended", "run_count", "restarts", "steps",
             "hparams", "end_reason")  # fmt: skip
    objectives = {}
    if status is not None:
        from detslurm.sdk.experiments.pareto import front_columns

        objectives = front_columns(status)
    return {name: getattr(row, name) for name in shown} | {
        "best_validation": best.value if best else None,
        "best_validation_steps": best.steps if best else None,
        **objectives,
        "latest_checkpoint": latest.uuid if latest else None,
        **energy_cells(row),
    }


def _workloads(trial: Trial) -> Iterator[Row]:
    """The reports of each step, and the saved checkpoints."""
    about = {"experiment_id": trial.experiment_id, "trial_id": trial.id}
    for row in trial.metric_rows():
        metrics = {f"{row.group}.{name}": value for name, value in row.metrics.items()}
        yield {**about, "steps": row.steps, "kind": row.group, "time": row.time, **metrics}
    for one in trial.checkpoints():
        saved = {"uuid": one.uuid, "state": str(one.state)}
        yield {
            **about,
            "steps": one.steps_completed,
            "kind": "checkpoint",
            "time": one.report_time,
            **saved,
        }


def _cells(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[plain(row.get(name), name) for name in columns] for row in rows]


def _csv(rows: Sequence[Row]) -> str:
    return csv_text(*_cells(rows))
