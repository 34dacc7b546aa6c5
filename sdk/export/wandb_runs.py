"""W&B: an offline run for each trial, as the library itself writes them; `wandb sync` uploads them.

A run file of W&B is closed for good when its run ends. A trial that has gone on gets a new file in
its place, with the same id.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import wandb

from detslurm.sdk.export.content import ExportWriter, Rows, TrialContent, reported_at, scalars
from detslurm.store.artifacts import Artifact


class WandbWriter(ExportWriter):
    """Writes `wandb/offline-run-*`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_trial(self, trial: TrialContent, rows: Rows, restarted: bool) -> None:
        """Write the run of a trial, in the place of an earlier run."""
        for earlier in self._folder.glob(f"wandb/offline-run-*-{trial.run_id}"):
            shutil.rmtree(earlier)
        run = self._begin(trial)
        logged: list[tuple[int, float, dict[str, Any]]] = [
            (row.steps, reported_at(trial, row), dict(scalars(row))) for row in rows
        ]
        with tempfile.TemporaryDirectory() as folder:
            for one in trial.artifacts():
                logged.append((one.steps, one.time, {one.name: _media(one, Path(folder))}))
            for steps, when, values in sorted(logged, key=lambda one: one[0]):
                run.log({**values, "_timestamp": when}, step=max(0, steps))
        run.summary.update({"detslurm/state": trial.row.state})
        run.finish(exit_code=1 if trial.row.state == "ERROR" else 0)

    def _begin(self, trial: TrialContent) -> Any:
        experiment = trial.experiment
        about = {
            "experiment": experiment.id,
            "trial": trial.id,
            "config": dict(experiment.config),
        }
        settings = wandb.Settings(
            mode="offline",
            root_dir=str(self._folder),
            console="off",
            disable_code=True,
            disable_git=True,
            silent=True,
            symlink=False,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_viewer=True,
            x_save_requirements=False,
        )
        return wandb.init(
            project="detslurm",
            group=f"{experiment.id} {experiment.name}"[:128],
            id=trial.run_id,
            name=trial.name[:128],
            notes=experiment.view.description or None,
            tags=[re.sub(r"[,/\\#?%:\s]+", "-", label)[:64] for label in experiment.view.labels],
            config={**trial.hparams, "detslurm": about},
            settings=settings,
        )


def _media(one: Artifact, folder: Path) -> Any:
    """An artifact as W&B has it; SVG is its HTML."""
    if one.media == "svg":
        return wandb.Html(one.data.decode("utf-8", "replace"), inject=False)
    if one.media != "json":
        path = folder / f"{len(list(folder.iterdir()))}.{one.media}"
        path.write_bytes(one.data)
        return wandb.Image(str(path))
    found = json.loads(one.data)
    if one.kind == "histogram":
        return wandb.Histogram(np_histogram=(found["counts"], found["edges"]))
    if one.kind == "confusion_matrix":
        rows = [[name, *row] for name, row in zip(found["labels"], found["counts"], strict=True)]
        return wandb.Table(columns=["true", *found["labels"]], data=rows)
    return wandb.Table(columns=found["columns"], data=found["rows"], allow_mixed_types=True)
