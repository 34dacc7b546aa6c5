"""Experiments to measure with, made through the front door and queued nowhere."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import REPOSITORY, cache_directory
from detslurm._base import startup
from detslurm.jobs import resubmit
from detslurm.sdk import Client
from detslurm.sdk.submission.submit import cache_modules
from detslurm.slurm import JobRequest, LocalCluster
from detslurm.store import ExperimentDir, ExperimentRow, RunLog, Store
from detslurm.store.index import PART
from detslurm.store.records import Created

CONFIG = """\
    name: bench
    entrypoint: {entrypoint}
    searcher: {{name: single, metric: loss, max_length: 1000000000}}
    slurm: {{slot_type: cpu{slurm}}}
    max_restarts: 0
    """


class Nowhere(LocalCluster):
    """A cluster that takes every job and runs none."""

    def submit(self, request: JobRequest) -> str:
        return "1"


def kept(name: str, make: Callable[[Store], object]) -> Path:
    """A folder in the user's cache with a store as `make` fills it; made anew when the code that
    writes it has changed."""
    digest = hashlib.sha256(sys.version.encode())
    for source in (Path(__file__), *sorted((REPOSITORY / "detslurm" / "store").rglob("*.py"))):
        digest.update(source.read_bytes())
    place = cache_directory() / f"{name}-{digest.hexdigest()[:12]}"
    if not place.exists():
        for old in place.parent.glob(f"{name}-*"):
            shutil.rmtree(old)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place.parent))
        make(Store.open(partial / "store"))
        partial.rename(place)
    return place


def submitted(
    folder: Path, root: Path, entrypoint: str, script: str = "", slurm: str = "", image: str = ""
) -> ExperimentDir:
    """An experiment as `detslurm submit` leaves it, with `script` as train.py."""
    context = folder / "context"
    context.mkdir()
    (context / "train.py").write_text(textwrap.dedent(script))
    config = context / "experiment.yaml"
    text = textwrap.dedent(CONFIG).format(entrypoint=entrypoint, slurm=slurm)
    config.write_text(text + (f"environment: {{image: {image}}}\n" if image else ""))
    client = Client(root, connect=lambda name: Nowhere(root))
    experiment = client.store.experiment(client.submit(config).id)
    cache_modules(client.store)
    return experiment


def job_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a job of the local cluster."""
    return environment | {"DETSLURM_LOCAL_JOB_ID": "1"}


def agent_command(experiment: ExperimentDir) -> list[str]:
    """An agent for a run of the experiment's first trial, claimed here as a runner would."""
    number = experiment.created().first_trial
    trial = experiment.trial(number)
    if trial.start(1) is None:
        claim = {"trial": number, "experiment": experiment.id, "hparams": {}, "seed": 0, "job": {}}
        trial.open_run(claim)
    start = [sys.executable, "-PS", startup.__file__, "detslurm.exec.agent"]
    return [*start, str(experiment.path), str(number), "1"]


def runner_command(experiment: ExperimentDir) -> list[str]:
    """A runner for the experiment's first trial."""
    return list(resubmit.runner_command(experiment.path, 0))


def finished(store: Store, count: int) -> None:
    """Add `count` experiments that ran to their end, one trial each."""
    for number in range(count):
        experiment = store.create_experiment(
            Created(name=f"e{number}", trials=1, metric="loss"),
            {"name": f"e{number}", "entrypoint": "true"},
        )
        trial_id = experiment.created().first_trial
        experiment.append(
            {
                "type": "submitted",
                "jobs": [{"cluster": "slurm", "job_id": str(number + 1), "first_index": 0}],
            }
        )
        trial = experiment.trial(trial_id)
        trial.open_run({"trial": trial_id, "experiment": experiment.id, "time": time.time()})
        with RunLog.open(trial.records_path(1)) as log:
            log.append({"t": "metrics", "group": "validation", "steps": 9, "metrics": {"loss": 1}})
        trial.write_end(1, {"outcome": "completed", "reason": "bench", "time": time.time()})


def indexed(store: Store, count: int) -> None:
    """Let the index have `count` finished experiments of which nothing else is on disk."""
    (store.path / "experiments").mkdir(exist_ok=True)
    catalog = store.catalog()
    for first in range(1, count + 1, PART):
        catalog.settle(map(_row, range(first, min(first + PART, count + 1))))


def _row(number: int) -> ExperimentRow:
    """As long as the rows of people's experiments."""
    ended = 1.7e9 + 60 * number
    return ExperimentRow(
        id=number, name=f"mnist-learning-rate-{number}", owner="alice", state="COMPLETED",
        progress=1.0, created=ended - 500, started=ended - 400, ended=ended, pool="gpu", slots=4,
        trial_count=1, trial_states={"COMPLETED": 1}, description="with a warm-up of 500 batches",
        labels=("sweep", "v2"), metric="validation_loss", best_trial=number, best_value=0.25,
        cluster="slurm",
    )  # fmt: skip
