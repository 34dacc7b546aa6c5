"""Checks before anything is queued: what would fail hours later in the queue is reported now."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from detslurm.sdk.submission.sources import find_checkpoint
from detslurm.store import NotFound, Store


def sampler_problems(config: Mapping[str, Any]) -> list[str]:
    """Why Optuna, as this Python has it, can't draw the samples that a configuration asks for."""
    if config["searcher"]["name"] != "optuna":
        return []
    question = {
        "searcher": config["searcher"],
        "space": config["hyperparameters"],
        "seed": config["reproducibility"]["experiment_seed"],
        "history": {},
        "wanted": [0],
    }
    # What a job does for its first trial; in a process of its own, for Optuna is heavy.
    argv = [sys.executable, "-P", "-m", "detslurm.exec.sampling"]
    done = subprocess.run(
        argv, input=json.dumps(question), capture_output=True, text=True, check=False
    )
    try:
        problem = json.loads(done.stdout).get("error")
    except ValueError:
        problem = done.stderr.strip() or f"the sampler ended with status {done.returncode}"
    return [] if problem is None else [str(problem)]


def warm_start_problems(config: Mapping[str, Any], store: Store) -> list[str]:
    """Why the trials can't begin with the checkpoint that `searcher` names."""
    searcher = config["searcher"]
    number, uuid = searcher.get("source_trial_id"), searcher.get("source_checkpoint_uuid")
    key, elsewhere = "source_checkpoint_uuid", None
    if number is not None:
        from detslurm.store.reading import latest_checkpoint

        key = "source_trial_id"
        try:
            latest = latest_checkpoint(store, number)
        except NotFound as error:
            return [f"searcher.{key}: {error}"]
        if latest is None:
            return [f"searcher.{key}: trial {number} has no checkpoint"]
        uuid, elsewhere = latest.uuid, latest.storage
    elif uuid is not None and (found := find_checkpoint(store, uuid)) is not None:
        elsewhere = found.view.storage
    if uuid is None or elsewhere is not None:
        return []  # where code has named the storage, it names it again
    return _missing(f"searcher.{key}", uuid, config["checkpoint_storage"])


def _missing(key: str, uuid: str, section: Mapping[str, Any]) -> list[str]:
    if section["type"] != "shared_fs":
        return []  # a bucket answers slowly, and a directory may be there in the job alone
    from detslurm import storage

    kept = storage.from_config(section)
    try:
        found = kept.exists(uuid)
    except ValueError as error:
        return [f"{key}: {error}"]
    where = f"{kept.where}, the checkpoint_storage of this experiment"
    return [] if found else [f"{key}: checkpoint {uuid} is not in {where}"]
