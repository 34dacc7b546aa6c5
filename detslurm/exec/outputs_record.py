"""What a run's claim and its end record hold of the trial's outputs."""

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
_MOST_FILES, _SECONDS = 10_000, 10.0


def outputs_claim(
    config: Mapping[str, Any], trial: TrialDir, copy: str | None
) -> dict[str, Any] | None:
    """The part of a claim that names the directory: that of the trial's first run, or a new one.

    It lies below the checkpoint storage; where that is a bucket, in the trial's directory.
    """
    if config.get("outputs") is None:
        return None
    storage = from_config(config["checkpoint_storage"])
    place: dict[str, Any] = {}
    if not isinstance(storage, SharedFS):
        storage = SharedFS(trial.path / "outputs")
        place = {"storage": {"type": "directory", "container_path": str(storage.base)}}
    first = (trial.start(1) or {}).get("outputs") or {}
    name = first.get("uuid") or str(uuid.uuid4())
    begins = {} if copy is None else {"copy": copy}
    return {"uuid": name, "path": str(storage.path(name)), **place, **begins}


def outputs_left(claim: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part of an end record that lists the files; None without any."""
    found, complete = _listed(Path(claim["path"]))
    if all(name.endswith("/") for name in found):
        return None
    kept = {name: claim[name] for name in ("uuid", "storage") if name in claim}
    more = {} if complete else {"more": True}
    return {**kept, "resources": found, "time": time.time(), **more}


def _listed(root: Path) -> tuple[dict[str, int], bool]:
    """The directories, and the files with their sizes; and whether these are all."""
    until, found = time.monotonic() + _SECONDS, dict[str, int]()
    for folder, below, names in os.walk(root):
        prefix = "" if (place := os.path.relpath(folder, root)) == "." else f"{place}/"
        found.update((f"{prefix}{name}/", 0) for name in below)
        for name in names:
            try:
                size = os.lstat(f"{folder}/{name}").st_size
            except OSError:
                continue  # the code has just removed it
            found[f"{prefix}{name}"] = size
        if len(found) > _MOST_FILES or time.monotonic() > until:
            return dict(list(found.items())[:_MOST_FILES]), False
    return found, True
