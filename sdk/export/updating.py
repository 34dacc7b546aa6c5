"""One export: find what is new of each trial, and let the format's writer add it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.export import ExportedTrial, Progress
from detslurm.sdk.export.content import ExperimentContent, TrialContent, content_of
from detslurm.sdk.export.journal import (
    ExportedRun,
    ExportJournal,
    RunChange,
    about,
    change_of,
    is_settled,
    written,
)

# Made with the directory.
_WRITERS: Final = {
    "csv": "detslurm.sdk.export.tables:CsvWriter",
    "parquet": "detslurm.sdk.export.tables:ParquetWriter",
    "tensorboard": "detslurm.sdk.export.tensorboard_events:TensorboardWriter",
    "wandb": "detslurm.sdk.export.wandb_runs:WandbWriter",
    "mlflow": "detslurm.sdk.export.mlflow_runs:MlflowWriter",
    "trackio": "detslurm.sdk.export.trackio_runs:TrackioWriter",
}


@runtime_checkable
class TrialWriter(Protocol):
    """Writes a format that has something of its own for each trial."""

    def write_trial(
        self, experiment: ExperimentContent, trial: TrialContent, change: RunChange
    ) -> None:
        """Write what has changed of a trial; it is on disk when this returns."""


class ExperimentWriter(Protocol):
    """Writes a format that has all trials of an experiment together."""

    def write_experiment(self, experiment: ExperimentContent) -> None:
        """Write an experiment of which some trial has changed, to the disk as well."""


def update(
    experiments: Sequence[Experiment], to: str, folder: Path, progress: Progress
) -> list[ExportedTrial]:
    """Bring an export up to date."""
    module, _, name = _WRITERS[to].partition(":")
    done: list[ExportedTrial] = []
    with ExportJournal(folder, to) as journal:
        # Made when something is new: the libraries are slow to import.
        writer = cache(lambda: getattr(import_module(module), name)(folder))
        for experiment in experiments:
            for trial in _update_one(content_of(experiment), journal, writer):
                done.append(trial)
                progress(trial)
    return done


def _update_one(
    experiment: ExperimentContent,
    journal: ExportJournal,
    writer: Callable[[], TrialWriter | ExperimentWriter],
) -> Iterator[ExportedTrial]:
    journal.refuse_namesake(experiment)
    whole: ExperimentWriter | None = None
    together: list[ExportedRun] = []
    for trial in experiment.trials:
        known, facts = journal.known(trial), about(experiment, trial)
        change = None
        if not is_settled(known, facts):
            rows = trial.read()
            change = change_of(known, facts, rows)
            if change is not None:
                journal.write([ExportedRun(trial.run_id, experiment.id, trial.id, pending=True)])
                made, line = writer(), written(experiment.id, trial, facts, rows)
                if isinstance(made, TrialWriter):
                    made.write_trial(experiment, trial, change)
                    journal.write([line])
                else:
                    whole = made
                    together.append(line)
        kind, count = (change.kind, len(change.rows)) if change else ("unchanged", 0)
        yield ExportedTrial(experiment.id, trial.id, trial.run_id, kind, count)
    if whole is not None:
        whole.write_experiment(experiment)
        journal.write(together)
