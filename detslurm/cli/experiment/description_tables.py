"""What `experiment describe` shows, as files of CSV: experiments, trials, and their workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.cli.output.printing import csv_text, plain
from detslurm.store import fs

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.trial import Trial

Row = Mapping[str, Any]


def write_tables(experiments: Sequence[Experiment], folder: Path) -> list[Path]:
    """Write the three files, which replace those of an earlier call; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "experiments": [_experiment(one) for one in experiments],
        "trials": [_trial(trial) for one in experiments for trial in one.trials()],
        "workloads": [w for one in experiments for t in one.trials() for w in _workloads(t)],
    }
    return [_write(folder / f"{name}.csv", rows) for name, rows in tables.items()]


def _experiment(one: Experiment) -> Row:
    view = one.view
    names = (n for n in view.row().__struct_fields__ if n != "trial_states")
    return {name: getattr(view, name) for name in names} | {"path": str(one.path)}


def _trial(trial: Trial) -> Row:
    row, best, latest = trial.row, trial.row.best_validation, trial.row.latest_checkpoint
    shown = ("id", "experiment_id", "state", "started", "ended", "run_count", "restarts", "steps",
             "hparams", "end_reason")  # fmt: skip
    return {name: getattr(row, name) for name in shown} | {
        "best_validation": best.value if best else None,
        "best_validation_steps": best.steps if best else None,
        "latest_checkpoint": latest.uuid if latest else None,
    }


def _workloads(trial: Trial) -> Iterator[Row]:
    """What was reported at each step, and what was saved."""
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


def _write(path: Path, rows: Sequence[Row]) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = ([plain(row.get(name), name) for name in columns] for row in rows)
    fs.replace_file(path, csv_text(columns, cells).encode(), sync=False)
    return path
