"""Which trial a job that detslurm did not submit works for: claimed once, found again by requeues.

The first start of a job makes an experiment, with one trial for each element of its array; a file
named after the job and the step leads every later start to the same one.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm.slurm import Allocation
from detslurm.store import ExperimentDir, Store, TrialDir, fold_trial
from detslurm.store.facts import put_record, read_record
from detslurm.store.fs import claim_directory, ensure_directory

FINISHED = ("COMPLETED", "ERROR", "CANCELED")

# How long to let another element of the array make the experiment before making one as well.
_PATIENCE = 20.0


@dataclass(frozen=True)
class Work:
    """What this process works for: a job's step, or one element of it."""

    allocation: Allocation
    step: str
    argv: Sequence[str]
    array: tuple[int, int, int] | None = None  # first, last and step of a regular array

    @classmethod
    def of(cls, allocation: Allocation, env: Mapping[str, str], argv: Sequence[str]) -> Work:
        """The work of a process by its environment and command line."""
        return cls(allocation, env.get("SLURM_STEP_ID", "batch"), argv, regular_array(env))

    @property
    def index(self) -> int:
        """Which of the experiment's trials is this element's."""
        if self.array is None:
            return 0
        first, _, step = self.array
        return ((self.allocation.array_task_id or 0) - first) // step

    @property
    def elements(self) -> list[str]:
        """The job reference of every trial, in order."""
        if self.array is None:
            return [self.allocation.ref]
        first, last, step = self.array
        return [f"{self.allocation.array_job_id}_{n}" for n in range(first, last + 1, step)]

    def key(self, cluster: str) -> str:
        """The name of the claim: the same in every start of this step of the job."""
        if self.array is not None:  # whose elements may well have other arguments each
            return f"{cluster}-{self.allocation.array_job_id}-{self.step}"
        command = hashlib.sha256("\0".join(self.argv).encode()).hexdigest()[:8]
        return f"{cluster}-{self.allocation.ref}-{self.step}-{command}"


def regular_array(env: Mapping[str, str]) -> tuple[int, int, int] | None:
    """First, last and step of the job's array, where its elements can be told from these."""
    try:
        names = ("MIN", "MAX", "STEP", "COUNT")
        first, last, step, count = (int(env[f"SLURM_ARRAY_TASK_{name}"]) for name in names)
    except (KeyError, ValueError):
        return None
    return (first, last, step) if (last - first) // step + 1 == count else None


def claim(store: Store, work: Work, cluster: str) -> TrialDir:
    """The trial to go on with; a new one where there is none or the job has finished it."""
    folder = store.path / "embedded"
    ensure_directory(folder)
    for again in range(1000):
        path = folder / f"{work.key(cluster)}-{again}.json"
        experiment = _claimed(store, path) or _make(store, path, work)
        trial = experiment.trial(experiment.created()["first_trial"] + work.index)
        if fold_trial(trial, fresh=True).state not in FINISHED:
            return trial
    raise AssertionError("a job that ended a thousand times")


def find(store: Store, work: Work, cluster: str) -> TrialDir | None:
    """The trial that the chief of this step claimed, once it did."""
    folder = store.path / "embedded"
    for again in range(1000):
        experiment = _claimed(store, folder / f"{work.key(cluster)}-{again}.json")
        if experiment is None:
            return None
        trial = experiment.trial(experiment.created()["first_trial"] + work.index)
        if fold_trial(trial, fresh=True).state not in FINISHED:
            return trial
    return None


def _claimed(store: Store, path: Path) -> ExperimentDir | None:
    record = read_record(path, expected=True)
    return store.experiment(record["experiment"]) if record else None


def _make(store: Store, path: Path, work: Work) -> ExperimentDir:
    """Make the experiment, unless another element of the array is about to."""
    if not claim_directory(path.with_suffix(".making")):
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            found = _claimed(store, path)
            if found is not None:
                return found
            time.sleep(0.2)  # another process's file: there is nothing to wait on
    experiment = store.new_experiment()
    count = len(work.elements)
    first = store.reserve_trials(experiment.id, count)
    experiment.prepare_trials(first, count)
    config = configuration(store, work.argv)
    experiment.write_config(config, "")
    experiment.create(
        {
            "name": config["name"],
            "first_trial": first,
            "trials": count,
            "managed": False,
            "cluster": work.allocation.cluster,
            "pool": work.allocation.partition,
            "max_restarts": 0,
        }
    )
    experiment.append({"type": "submitted", "jobs": _jobs(work)})
    if not put_record(path, {"experiment": experiment.id}):
        experiment.append({"type": "wish", "wish": "delete"})  # somebody was faster after all
        found = _claimed(store, path)
        assert found is not None
        return found
    return experiment


def _jobs(work: Work) -> list[dict[str, Any]]:
    cluster = work.allocation.cluster
    return [
        {"cluster": cluster, "job_id": ref, "first_index": index, "count": 1, "array": False}
        for index, ref in enumerate(work.elements)
    ]


def configuration(store: Store, argv: Sequence[str]) -> dict[str, Any]:
    """What stands for the configuration that nobody wrote."""
    name = os.environ.get("SLURM_JOB_NAME") or Path(argv[0] if argv else "script").name
    return {
        "name": name,
        "entrypoint": list(argv or sys.argv),
        "searcher": {"name": "single", "metric": "", "max_length": None},
        "hyperparameters": {},
        "checkpoint_storage": {
            "type": "directory",
            "container_path": str(store.path / "checkpoints"),
        },
        "reproducibility": {"experiment_seed": 0},
        "max_restarts": 0,
    }
