"""The parts of a run's claim and end record that describe the trial's outputs."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detslurm.storage import SharedFS, from_config
from detslurm.store import TrialDir

# A listing ends here: the job of the run may be ending.
_MOST_FILES, _SECONDS = 10_000, 5.0


def outputs_claim(
    checkpoint_storage: Mapping[str, Any], trial: TrialDir, copy: str | None
) -> dict[str, Any]:
    """The part of a claim that names the directory: that of the trial's first run, or a new one.

    It lies below the checkpoint storage; where that is a bucket, in the trial's directory.
    """
    storage = from_config(checkpoint_storage)
    place: dict[str, Any] = {}
    if not isinstance(storage, SharedFS):
        storage = SharedFS(trial.path / "outputs")
        place = {"storage": {"type": "directory", "container_path": str(storage.base)}}
    first = trial.start(1)
    known = first.outputs if first is not None else None
    name = known.uuid if known is not None else str(uuid.uuid4())
    begins = {} if copy is None else {"copy": copy}
    return {"uuid": name, "path": str(storage.path(name)), **place, **begins}


def outputs_left(trial: TrialDir, run: int) -> tuple[dict[str, Any], bool]:
    """The part of a run's end record that lists the files, empty without any; and whether the run
    has written some, by the clocks of file servers."""
    start = trial.start(run)
    claim = start.outputs if start is not None else None
    if claim is None or claim.path is None:
        return {}, False
    found, newest = _listed(Path(claim.path))
    if not newest:
        return {}, False
    try:
        has_written = newest >= trial.outputs_path(run).lstat().st_mtime
    except OSError:
        has_written = False
    place = {} if claim.storage is None else {"storage": claim.storage}
    return {"uuid": claim.uuid, **place, "resources": found, "time": time.time()}, has_written


def _listed(root: Path) -> tuple[dict[str, int], float]:
    """The directories, and the files with their sizes; and when a file was written last."""
    until, found, newest = time.monotonic() + _SECONDS, dict[str, int](), 0.0
    for folder, below, names in os.walk(root):
        prefix = "" if (place := os.path.relpath(folder, root)) == "." else f"{place}/"
        found.update((f"{prefix}{name}/", 0) for name in below)
        for name in names:
            try:
                status = os.lstat(f"{folder}/{name}")
            except OSError:
                continue  # the code has just removed it
            found[f"{prefix}{name}"] = status.st_size
            newest = max(newest, status.st_mtime)
        if len(found) > _MOST_FILES or time.monotonic() > until:
            return dict(list(found.items())[:_MOST_FILES]), newest
    return found, newest
