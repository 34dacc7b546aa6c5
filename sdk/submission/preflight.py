"""Checks before anything is queued: what would fail hours later in the queue is reported now."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from detslurm._base import pythonpath
from detslurm.config import ExperimentConfig
from detslurm.config.schema.storage import SharedFS
from detslurm.sdk.checkpoints.verification import unusable
from detslurm.sdk.submission.sources import find_checkpoint
from detslurm.searcher.events import KnownResults
from detslurm.storage import from_config
from detslurm.store import CheckpointView, NotFound, Store
from detslurm.store.reading import latest_checkpoint


class SamplerCheck(NamedTuple):
    """The fault of a sampler, and the warnings of Optuna."""

    problems: list[str]
    notes: list[str]


def check_sampler(config: Mapping[str, Any], known: KnownResults | None = None) -> SamplerCheck:
    """Draw the sample of the first trial with this Python's Optuna, if the search asks it."""
    if config["searcher"].get("sampler") is None:
        return SamplerCheck([], [])
    question = {
        "searcher": config["searcher"],
        "space": config["hyperparameters"],
        "seed": config["reproducibility"]["experiment_seed"],
        "history": {"known": [] if known is None else msgspec.to_builtins(known.results)},
        "wanted": [0],
    }
    # A job's work for its first trial; in a process of its own, for Optuna is heavy.
    argv = [sys.executable, "-P", "-m", "detslurm.exec.sampling"]
    env = pythonpath.own_environment(os.environ)
    done = subprocess.run(
        argv, env=env, input=json.dumps(question), capture_output=True, text=True, check=False
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {
            "error": done.stderr.strip() or f"the sampler ended with status {done.returncode}"
        }
    problem = answer.get("error")
    notes = [f"searcher.sampler_args: Optuna warns: {text}" for text in answer.get("warnings", ())]
    return SamplerCheck([] if problem is None else [str(problem)], notes)


def storage_notes(config: ExperimentConfig) -> list[str]:
    """Why no checkpoint could be saved from this machine. Each run looks again, because a file
    system may be mounted on the nodes that is missing or read-only here."""
    section = config.checkpoint_storage
    if not isinstance(section, SharedFS):
        return []
    base = Path(section.path)
    try:
        if not Path(section.host_path).is_dir():
            return []
        nearest = next(path for path in (base, *base.parents) if path.exists())
        is_directory, flags = nearest.is_dir(), os.statvfs(nearest).f_flag
    except OSError:
        return []
    if not is_directory:
        what = f"{nearest} is no directory"
    elif os.access(nearest, os.W_OK | os.X_OK) or flags & os.ST_RDONLY:
        return []
    else:
        what = f"{nearest} can't be written to"
    return [f"checkpoint_storage: no checkpoint can be saved in {base}: {what}"]


def warm_start_problems(config: Mapping[str, Any], store: Store) -> list[str]:
    """Why the trials can't begin with the checkpoint that `searcher` names."""
    searcher = config["searcher"]
    number, uuid = searcher.get("source_trial_id"), searcher.get("source_checkpoint_uuid")
    key, view = "source_checkpoint_uuid", None
    if number is not None:
        key = "source_trial_id"
        try:
            view = latest_checkpoint(store, number)
        except NotFound as error:
            return [f"searcher.{key}: {error}"]
        if view is None:
            return [f"searcher.{key}: trial {number} has no checkpoint"]
        uuid = view.uuid
    elif uuid is not None and (found := find_checkpoint(store, uuid)) is not None:
        view = found.view
    if uuid is None or (view is not None and view.storage is not None):
        return []  # where code has named the storage, it names it again
    problem = _unusable(uuid, view, config["checkpoint_storage"])
    return [] if problem is None else [f"searcher.{key}: {problem}"]


def _unusable(uuid: str, view: CheckpointView | None, section: Mapping[str, Any]) -> str | None:
    if section["type"] != "shared_fs":
        return None  # a bucket answers slowly, and a directory may be there in the job alone
    kept = from_config(section)
    try:
        if not kept.exists(uuid):
            where = f"{kept.where}, the checkpoint_storage of this experiment"
            return f"checkpoint {uuid} is not in {where}"
    except ValueError as error:
        return str(error)
    return None if view is None else unusable(view, kept)
