"""What a run's claim and its end record hold of the trial's outputs."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
    first = (trial.start(1) or {}).get("outputs") or {}
    name = first.get("uuid") or str(uuid.uuid4())
    begins = {} if copy is None else {"copy": copy}
    return {"uuid": name, "path": str(storage.path(name)), **place, **begins}


class OutputsLeft(NamedTuple):
    """The files of a directory of outputs, when a run has ended.

    Attributes:
        resources: The directories, and the files with their sizes.
        newest: When a file was written last, in seconds since 1970.
        complete: Whether these are all.
    """

    resources: dict[str, int]
    newest: float
    complete: bool

    def record(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the end record about them; empty without files."""
        if not self.newest:
            return {}
        kept = {name: claim[name] for name in ("uuid", "storage") if name in claim}
        more = {} if self.complete else {"more": True}
        return {"outputs": {**kept, "resources": self.resources, "time": time.time(), **more}}

    def is_newer(self, trial: TrialDir, run: int) -> bool:
        """Whether this run has written any, by the clocks of file servers."""
        try:
            return self.newest >= os.lstat(trial.outputs_path(run)).st_mtime
        except OSError:
            return False


def outputs_left(claim: Mapping[str, Any]) -> OutputsLeft:
    """List the directory of outputs."""
    root, newest = Path(claim["path"]), 0.0
    until, found = time.monotonic() + _SECONDS, dict[str, int]()
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
            return OutputsLeft(dict(list(found.items())[:_MOST_FILES]), newest, False)
    return OutputsLeft(found, newest, True)
