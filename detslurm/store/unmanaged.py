"""Stands for a configuration where no user wrote one: scripts that were not submitted here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detslurm.store.errors import StoreError
from detslurm.store.facts import put_record, read_record
from detslurm.store.fs import ensure_directory
from detslurm.store.job_claims import claims_folder
from detslurm.store.store import Store

METRIC = "loss"
"""The metric of such an experiment's best validation, smaller values first."""


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
        ensure_directory(path.parent)
        number = make()
        if put_record(path, {"number": number, "names": list(names)}):
            return number, True
        found = read_record(path, expected=True)
    if found is None or "number" not in found:
        raise StoreError(f"{path} can't be read")
    return int(found["number"]), False
