"""Exports in a process of their own.

The libraries of W&B, MLflow and trackio read their settings when they are imported, start threads
and services, and print. In a child all of that is ours to set, and nothing of it stays in the
user's notebook.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Final

import msgspec

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.export import ExportedTrial, Progress

ISOLATED: Final = ("wandb", "mlflow", "trackio")

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


class ExportTask(msgspec.Struct, frozen=True):
    """What a child has to do: `experiments` are their ids by the store that has them."""

    experiments: list[tuple[str, list[int]]]
    to: str
    folder: str


class ExportFailure(msgspec.Struct, frozen=True):
    """Why a child ended early: what its user has to be told."""

    error: str


def environment(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The child's environment: nobody's runs, servers or keys, and every network switch off."""
    kept = {k: v for k, v in inherited.items() if not k.startswith(_FOREIGN)}
    return {**kept, **_OFFLINE, "TRACKIO_DIR": str(folder / "trackio")}


def update(
    experiments: Sequence[Experiment], to: str, folder: Path, progress: Progress
) -> list[ExportedTrial]:
    """As `updating.update`, in a child."""
    if not experiments:
        return []
    # By neighbours, so that their order stays.
    stores = groupby(experiments, lambda experiment: str(experiment.path.parent.parent))
    named = [(root, [experiment.id for experiment in some]) for root, some in stores]
    task = ExportTask(named, to, str(folder))
    done: list[ExportedTrial] = []
    with tempfile.TemporaryFile() as errors:
        argv = [sys.executable, "-P", "-m", "detslurm.sdk.export.child"]
        with subprocess.Popen(
            [*argv, msgspec.json.encode(task).decode()],
            env=environment(os.environ, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child:
            assert child.stdout is not None
            failure = _follow(child.stdout, done, progress)
        if child.returncode or failure:
            raise LifecycleError(failure or _last_words(to, child.returncode, errors))
    return done


def _follow(lines: IO[bytes], done: list[ExportedTrial], progress: Progress) -> str | None:
    for line in lines:
        said = msgspec.json.decode(line, type=ExportFailure | list)
        if isinstance(said, ExportFailure):
            return said.error
        done.append(ExportedTrial(*said))
        progress(done[-1])
    return None


def _last_words(to: str, status: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f"the export to {to} failed (exit status {status}): " + "\n".join(lines[-15:])
