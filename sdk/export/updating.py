"""One export: find the trials with something new, and let the format's writer write them.

The libraries of W&B, MLflow and trackio read their settings when they are imported, start threads
and services, and print. In a child all of that is ours to set, and nothing of it stays in the
user's notebook.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from detslurm.sdk.client import Client
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
from detslurm.store import StoreError
from detslurm.store.frame import encode_json

_WRITERS: Final = {
    "csv": ("tables", "CsvWriter"),
    "parquet": ("tables", "ParquetWriter"),
    "tensorboard": ("tensorboard_events", "TensorboardWriter"),
    "wandb": ("wandb_runs", "WandbWriter"),
    "mlflow": ("mlflow_runs", "MlflowWriter"),
    "trackio": ("trackio_runs", "TrackioWriter"),
}
_ISOLATED: Final = ("wandb", "mlflow", "trackio")

_OFFLINE: Final = {
    "DO_NOT_TRACK": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}
_FOREIGN: Final = ("WANDB_", "MLFLOW_", "TRACKIO_", "_WANDB_")
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
    way = _update_in_child if to in _ISOLATED else update_here
    return way(experiments, to, folder, progress)


def update_here(
    experiments: Sequence[Experiment], to: str, folder: Path, progress: Progress
) -> list[ExportedTrial]:
    """Bring an export up to date in this process."""
    module, name = _WRITERS[to]
    done: list[ExportedTrial] = []
    journal = _Journal(folder, to)
    with journal.file:
        # Made when something is new: the libraries are slow to import.
        writer = cache(lambda: getattr(import_module(f"{__package__}.{module}"), name)(folder))
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
        known, about = journal.entries.get(trial.run_id), _facts_digest(trial)
        change, count = "unchanged", 0
        if not (trial.row.final and known is not None and known.about == about):
            rows = trial.read()
            entry = _entry(trial, about, rows)
            if entry != known:
                change, count = "new" if known is None else "changed", len(rows)
                journal.write([_Entry(trial.run_id, experiment.id, trial.id)])
                restarted = known is not None and known.run_count != entry.run_count
                writer().write_trial(trial, rows, restarted)
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
        self.file = path.open("ab")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise LifecycleError(f"another export is at work in {folder}") from None
        except OSError:
            pass  # a file system without locks: two exports at once are the user's to avoid
        self.file.write(b"\n" if self.file.tell() else b"")  # after a line that a crash has torn
        self.entries: dict[str, _Entry] = {}
        for line in path.read_bytes().splitlines():
            with suppress(msgspec.DecodeError):  # torn: the line before it has no digests
                entry = msgspec.json.decode(line, type=_Entry)
                self.entries[entry.run] = entry

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
            self.file.write(msgspec.json.encode(entry) + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def _entry(trial: TrialContent, about: str, rows: Rows) -> _Entry:
    """The line for a run of which all these rows are written."""
    digest = _digest([[row.group, row.steps, row.metrics, row.time] for row in rows])
    runs = trial.row.run_count
    return _Entry(trial.run_id, trial.experiment.id, trial.id, about, digest, runs)


def _facts_digest(trial: TrialContent) -> str:
    """A digest of everything of a run that is exported beside its rows."""
    view = trial.experiment.view
    facts = [view.name, view.description, view.labels, trial.experiment.config]
    return _digest([facts, [getattr(trial.row, name) for name in _ABOUT]])


def _digest(data: Any) -> str:
    return hashlib.sha256(encode_json(data)).hexdigest()[:16]


# -- a process of its own --------------------------------------------------------------------------


def _environment(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The child's environment: no runs, servers or keys, and every network switch off."""
    kept = {k: v for k, v in inherited.items() if not k.startswith(_FOREIGN)}
    return {**kept, **_OFFLINE, "TRACKIO_DIR": str(folder / "trackio")}


def _update_in_child(
    experiments: Sequence[Experiment], to: str, folder: Path, progress: Progress
) -> list[ExportedTrial]:
    """Do the same as `update_here` in a process of its own."""
    named = [(str(one.path.parent.parent), one.id) for one in experiments]
    done: list[ExportedTrial] = []
    failure = ""
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, to, str(folder)],
            env=_environment(os.environ, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(msgspec.json.encode(named))
            child.stdin.close()
            for result in map(msgspec.json.decode, child.stdout):
                if isinstance(result, str):
                    failure = result
                else:
                    done.append(ExportedTrial(*result))
                    progress(done[-1])
        if child.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            why = f"the export to {to} failed (exit status {child.returncode}): "
            raise LifecycleError(failure or why + "\n".join(lines[-15:]))
    return done


def main(to: str, folder: str) -> int:
    """Export the experiments that stdin names; write a trial or an error as a line of JSON."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)  # what the libraries print is no result

        def report(result: ExportedTrial | str) -> None:
            out.write(msgspec.json.encode(result) + b"\n")

        client = cache(lambda root: Client(root, warn=lambda text: print(text, file=sys.stderr)))
        try:
            experiments = [client(root).stored(number) for root, number in json.load(sys.stdin)]
            update_here(experiments, to, Path(folder), report)
        except (LifecycleError, StoreError) as error:
            report(str(error))
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
