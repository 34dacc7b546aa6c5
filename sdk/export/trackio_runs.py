"""trackio: a run for each trial in its local database, which `trackio show` displays."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackio.sqlite_storage import SQLiteStorage

from detslurm.sdk.export.content import ExportWriter, Rows, TrialContent, reported_at, scalars
from detslurm.store import MetricRow


class TrackioWriter(ExportWriter):
    """Writes `trackio/`, the directory that TRACKIO_DIR names; its environment has it set."""

    def __init__(self, folder: Path) -> None:
        (folder / "trackio").mkdir(exist_ok=True)

    def write_trial(self, trial: TrialContent, rows: Rows, restarted: bool) -> None:
        """Put a run in the place of an earlier run."""
        project = f"experiment-{trial.experiment.id}"
        SQLiteStorage.delete_run(project, trial.name, run_id=trial.run_id)
        logged = [(row, dict(scalars(row))) for row in rows]
        SQLiteStorage.bulk_log(
            project,
            trial.name,
            [numbers for _, numbers in logged],
            steps=[row.steps for row, _ in logged],
            timestamps=[_moment(trial, row) for row, _ in logged],
            config=_config(trial),
            log_ids=[f"{trial.run_id}/{row.group}/{row.steps}" for row, _ in logged],
            run_id=trial.run_id,
        )


def _config(trial: TrialContent) -> dict[str, Any]:
    experiment = trial.experiment
    about = {
        "experiment": experiment.id,
        "trial": trial.id,
        "state": trial.row.state,
        "labels": list(experiment.view.labels),
        "config": dict(experiment.config),
    }
    return {**trial.hparams, "detslurm": about, "_Group": experiment.name}


def _moment(trial: TrialContent, row: MetricRow) -> str:
    return datetime.fromtimestamp(reported_at(trial, row), UTC).isoformat()
