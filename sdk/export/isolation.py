"""Exports in a process of their own.

The libraries of W&B, MLflow and trackio read their settings when they are imported, start threads
and services, and print. In a child all of that is ours to set, and nothing of it stays in the
user's notebook.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

import msgspec

from detslurm.sdk.client import Client
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.export import ExportedTrial, Progress, updating
from detslurm.store import StoreError

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


def environment(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The child's environment: no runs, servers or keys, and every network switch off."""
    kept = {k: v for k, v in inherited.items() if not k.startswith(_FOREIGN)}
    return {**kept, **_OFFLINE, "TRACKIO_DIR": str(folder / "trackio")}


def update(
    experiments: Sequence[Experiment], to: str, folder: Path, progress: Progress
) -> list[ExportedTrial]:
    """Do the same as `updating.update` in a child."""
    if not experiments:
        return []
    named = [(str(one.path.parent.parent), one.id) for one in experiments]
    done: list[ExportedTrial] = []
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "detslurm.sdk.export.isolation", to, str(folder)],
            env=environment(os.environ, folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(msgspec.json.encode(named))
            child.stdin.close()
            failure = None
            for line in child.stdout:
                result = msgspec.json.decode(line)
                if isinstance(result, str):
                    failure = result
                    continue
                done.append(ExportedTrial(*result))
                progress(done[-1])
        if child.returncode or failure:
            raise LifecycleError(failure or _last_words(to, child.returncode, errors))
    return done


def _last_words(to: str, status: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return f"the export to {to} failed (exit status {status}): " + "\n".join(lines[-15:])


def main(to: str, folder: str) -> int:
    """Export the experiments that stdin names; write a trial or an error as a line of JSON."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)  # what the libraries print is no result

        def report(result: ExportedTrial | str) -> None:
            out.write(msgspec.json.encode(result) + b"\n")

        client = cache(lambda root: Client(root, warn=lambda text: print(text, file=sys.stderr)))
        try:
            experiments = [client(root).stored(number) for root, number in json.load(sys.stdin)]
            updating.update(experiments, to, Path(folder), report)
        except (LifecycleError, StoreError) as error:
            report(str(error))
            return 1
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
