"""One export: find the trials with something new, and let the format's writer write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.export import ExportedTrial, Progress
from detslurm.sdk.export.content import ExperimentContent, ExportWriter, content_of
from detslurm.sdk.export.journal import ExportedRun, ExportJournal, exported_run, facts_digest

# Made with the directory.
_WRITERS: Final = {
    "csv": "detslurm.sdk.export.tables:CsvWriter",
    "parquet": "detslurm.sdk.export.tables:ParquetWriter",
    "tensorboard": "detslurm.sdk.export.tensorboard_events:TensorboardWriter",
    "wandb": "detslurm.sdk.export.wandb_runs:WandbWriter",
    "mlflow": "detslurm.sdk.export.mlflow_runs:MlflowWriter",
    "trackio": "detslurm.sdk.export.trackio_runs:TrackioWriter",
}


def require(to: str) -> None:
    """Raise LifecycleError, with the extra to install, where the format's library is missing."""
    module = {"parquet": "pyarrow"}.get(to, to)
    if find_spec(module) is None:
        raise LifecycleError(
            f"{to} needs {module}, which is not installed for this Python: "
            f"pip install 'detslurm[{to}]'"
        )


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
            for trial in _update_experiment(content_of(experiment), journal, writer):
                done.append(trial)
                progress(trial)
    return done


def _update_experiment(
    experiment: ExperimentContent, journal: ExportJournal, writer: Callable[[], ExportWriter]
) -> Iterator[ExportedTrial]:
    journal.refuse_namesake(experiment)
    written: list[ExportedRun] = []
    for trial in experiment.trials:
        known, about = journal.known(trial), facts_digest(experiment, trial)
        change, count = "unchanged", 0
        if not (trial.row.final and known is not None and known.about == about):
            rows = trial.read()
            line = exported_run(experiment, trial, about, rows)
            if line != known:
                change, count = "new" if known is None else "changed", len(rows)
                journal.write([ExportedRun(trial.run_id, experiment.id, trial.id)])
                restarted = known is not None and known.run_count != line.run_count
                writer().write_trial(experiment, trial, rows, restarted)
                written.append(line)
        yield ExportedTrial(experiment.id, trial.id, trial.run_id, change, count)
    if written:
        writer().write_experiment(experiment)
        journal.write(written)
