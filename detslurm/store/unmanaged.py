"""Experiments that detslurm did not submit: their configuration, and the claims by which jobs and
names find them again, also where users submit their scripts once more."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.facts import put_record, read_record
from detslurm.store.store import Store

METRIC = "loss"
"""The metric of such an experiment's best validation, smaller values first."""

# CLUSTER-JOB-batch-COMMAND-AGAIN, where 0.1.0 had the step instead of "batch", and in arrays no
# command; CLUSTER-JOB-goes-on.
_CLAIM = re.compile(r".+?-(\d+)-(?:(?:batch|\d+)(?:-[0-9a-f]{8})?-(\d+)|goes-on)\.json")


def unmanaged_config(
    name: str, entrypoint: Sequence[str], checkpoint_storage: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of an experiment that begins with a process that already runs."""
    return {
        "name": name,
        "entrypoint": list(entrypoint),
        "searcher": {"name": "single", "metric": METRIC, "max_length": None},
        "hyperparameters": {},
        "checkpoint_storage": dict(checkpoint_storage),
        "reproducibility": {"experiment_seed": 0},
        "max_restarts": 0,
    }


def claim_number(store: Store, names: Sequence[str], make: Callable[[], int]) -> tuple[int, bool]:
    """The number that belongs to what a user names so, and whether `make` gave it just now.

    Raises `StoreError` where another process was faster and what it wrote can't be read.
    """
    digest = hashlib.sha256("\0".join(names).encode()).hexdigest()[:32]
    path = claims_folder(store) / f"named-{digest}.json"
    found = read_record(path, expected=True)
    if found is None:
        fs.ensure_directory(path.parent)
        number = make()
        if put_record(path, {"number": number, "names": list(names)}):
            return number, True
        found = read_record(path, expected=True)
    if found is None or "number" not in found:
        raise StoreError(f"{path} can't be read")
    return int(found["number"]), False


def claims_folder(store: Store) -> Path:
    """Where jobs that detslurm did not submit claim their experiments."""
    return store.own("unmanaged")


def inherit_claims(store: Store, cluster: str, job: str, first_job: str) -> None:
    """Let a new job go on with what the claims of its script's first job stand for."""
    put_record(_path(store, cluster, job), {"job": first_job})


def first_job(store: Store, cluster: str, job: str) -> str:
    """The job under whose name the claims of this one stand: mostly its own."""
    record = read_record(_path(store, cluster, job), expected=True)
    return str(record["job"]) if record else job


def successors(store: Store, cluster: str, job: str) -> list[str]:
    """The jobs that go on with what the claims of a script's first job stand for."""
    name = re.compile(re.escape(cluster) + r"-(\d+)-goes-on\.json")
    found = filter(None, map(name.fullmatch, fs.names_in(claims_folder(store))))
    return [match[1] for match in found if first_job(store, cluster, match[1]) == job]


def claims_by_job(store: Store) -> Mapping[str, Path]:
    """The newest claim of each job that has any, by the job's number, with one listing."""
    newest: dict[str, tuple[int, str]] = {}
    for name in fs.names_in(claims_folder(store)):
        if match := _CLAIM.fullmatch(name):
            here = (int(match[2] or 0), name)
            newest[match[1]] = max(newest.get(match[1], here), here)
    return {job: claims_folder(store) / name for job, (_, name) in newest.items()}


def claimed_experiment(claims: Mapping[str, Path], job: str) -> int | None:
    """The experiment that a job's newest claim stands for; None if there is none as yet."""
    record = read_record(claims[job], expected=True) if job in claims else None
    if record is None:
        return None
    if "experiment" in record:
        return int(record["experiment"])
    others = {number: claim for number, claim in claims.items() if number != job}
    return claimed_experiment(others, str(record["job"]))


def _path(store: Store, cluster: str, job: str) -> Path:
    return claims_folder(store) / f"{cluster}-{job}-goes-on.json"
