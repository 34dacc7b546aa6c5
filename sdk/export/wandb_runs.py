"""W&B: an offline run for each trial, as the library itself writes them; `wandb sync` uploads them.

A run file of W&B is closed for good when its run ends. A trial that has gone on gets a new one in
its place, with the same id.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from detslurm.sdk.export.content import ExperimentContent, TrialContent, reported_at, scalars
from detslurm.sdk.export.journal import RunChange


class WandbWriter:
    """Writes `wandb/offline-run-*`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_trial(
        self, experiment: ExperimentContent, trial: TrialContent, change: RunChange
    ) -> None:
        """Write the run of a trial, in the place of an earlier one."""
        for earlier in self._folder.glob(f"wandb/offline-run-*-{trial.run_id}"):
            shutil.rmtree(earlier)
        run = self._begin(experiment, trial)
        for row in change.all_rows:
            numbers: dict[str, Any] = dict(scalars(row))
            run.log({**numbers, "_timestamp": reported_at(trial, row)}, step=max(0, row.steps))
        run.summary.update({"detslurm/state": trial.row.state})
        run.finish(exit_code=1 if trial.row.state == "ERROR" else 0)

    def _begin(self, experiment: ExperimentContent, trial: TrialContent) -> Any:
        import wandb

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
            name=f"{experiment.name}/{trial.id}"[:128],
            notes=experiment.description or None,
            tags=[re.sub(r"[,/\\#?%:\s]+", "-", label)[:64] for label in experiment.labels],
            config={
                **trial.hparams,
                "detslurm": {
                    "experiment": experiment.id,
                    "trial": trial.id,
                    "config": dict(experiment.config),
                },
            },
            settings=settings,
        )
