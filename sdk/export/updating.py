"""One export: find the trials with something new, and let the format's writer write them."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.export import ExportedTrial, Progress
from detslurm.sdk.export.content import (
    ExperimentContent,
    ExportWriter,
    Rows,
    TrialContent,
    content_of,
)
from detslurm.store.frame import encode_json

# Made with the directory.
_WRITERS: Final = {
    "csv": "detslurm.sdk.export.tables:CsvWriter",
    "parquet": "detslurm.sdk.export.tables:ParquetWriter",
    "tensorboard": "detslurm.sdk.export.tensorboard_events:TensorboardWriter",
    "wandb": "detslurm.sdk.export.wandb_runs:WandbWriter",
    "mlflow": "detslurm.sdk.export.mlflow_runs:MlflowWriter",
    "trackio": "detslurm.sdk.export.trackio_runs:TrackioWriter",
}
_ABOUT: Final = (
    *("state", "run_count", "final", "hparams", "started", "ended", "steps", "restarts"),
    *("end_reason", "best_validation", "latest_checkpoint"),
)


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
    with closing(_Journal(folder, to)) as journal:
        # Made when something is new: the libraries are slow to import.
        writer = cache(lambda: getattr(import_module(module), name)(folder))
        for experiment in experiments:
            for trial in _update_experiment(content_of(experiment), journal, writer):
                done.append(trial)
                progress(trial)
    return done


def _update_experiment(
    experiment: ExperimentContent, journal: _Journal, writer: Callable[[], ExportWriter]
) -> Iterator[ExportedTrial]:
    journal.refuse_namesake(experiment)
    written: list[_Entry] = []
    for trial in experiment.trials:
        known, about = journal.entries.get(trial.run_id), _facts_digest(experiment, trial)
        change, count = "unchanged", 0
        if not (trial.row.final and known is not None and known.about == about):
            rows = trial.read()
            entry = _entry(experiment, trial, about, rows)
            if entry != known:
                change, count = "new" if known is None else "changed", len(rows)
                journal.write([_Entry(trial.run_id, experiment.id, trial.id)])
                restarted = known is not None and known.run_count != entry.run_count
                writer().write_trial(experiment, trial, rows, restarted)
                written.append(entry)
        yield ExportedTrial(experiment.id, trial.id, trial.run_id, change, count)
    if written:
        writer().write_experiment(experiment)
        journal.write(written)


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the journal: a run as it was written, by digests of its facts and its rows. A line
    without digests precedes the writing, which may break off anywhere."""

    run: str
    experiment: int
    trial: int
    about: str = ""
    rows: str = ""
    run_count: int = 0


class _Journal:
    """The runs that a directory has in one format; one process at a time has the file open."""

    def __init__(self, folder: Path, to: str) -> None:
        self._folder = folder
        path = folder / f".detslurm-{to}.jsonl"
        self._file = path.open("ab")
        self._lock()
        self._file.write(b"\n" if self._file.tell() else b"")  # after a line that a crash has torn
        self.entries: dict[str, _Entry] = {}
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):  # torn: the line before it has no digests
                entry = msgspec.json.decode(line, type=_Entry)
                self.entries[entry.run] = entry

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise LifecycleError(f"another export is at work in {self._folder}") from None
        except OSError:
            pass  # a file system without locks: two exports at once are the user's to avoid

    def close(self) -> None:
        self._file.close()

    def refuse_namesake(self, experiment: ExperimentContent) -> None:
        """Raise LifecycleError where an experiment of another store was exported under this id."""
        for known in self.entries.values():
            if known.experiment == experiment.id and not known.run.startswith(experiment.mark):
                raise LifecycleError(
                    f"{self._folder} has experiment {experiment.id} of another store: "
                    "choose another directory"
                )

    def write(self, entries: Iterable[_Entry]) -> None:
        """Add lines, on disk before this returns."""
        for entry in entries:
            self.entries[entry.run] = entry
            self._file.write(msgspec.json.encode(entry) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _entry(experiment: ExperimentContent, trial: TrialContent, about: str, rows: Rows) -> _Entry:
    """The line for a run of which all these rows are written."""
    digest = _digest([[row.group, row.steps, row.metrics, row.time] for row in rows])
    runs = trial.row.run_count
    return _Entry(trial.run_id, experiment.id, trial.id, about, digest, runs)


def _facts_digest(experiment: ExperimentContent, trial: TrialContent) -> str:
    """A digest of everything of a run that is exported beside its rows."""
    view = experiment.view
    facts = [view.name, view.description, view.labels, experiment.config]
    return _digest([facts, [getattr(trial.row, name) for name in _ABOUT]])


def _digest(data: Any) -> str:
    return hashlib.sha256(encode_json(data)).hexdigest()[:16]
