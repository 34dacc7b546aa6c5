"""Where search methods are saved: a directory of the user's, or checkpoints of an experiment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detslurm.store import fs

# The last one is what counts; the one before is kept for people.
_KEPT = 2


class FolderKeeper:
    """Keeps each state as `event_<n>` below a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def latest(self) -> Path | None:
        numbers = self._numbers()
        return self._folder / f"event_{numbers[-1]}" if numbers else None

    def save(self, event: int, fill: Callable[[Path], None]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with fs.staged_directory(self._folder / f"event_{event}") as stage:
            fill(Path(stage))
            _to_disk(Path(stage))
        for number in self._numbers()[:-_KEPT]:
            fs.remove_tree(self._folder / f"event_{number}")

    def _numbers(self) -> list[int]:
        names = [path.name.removeprefix("event_") for path in self._folder.glob("event_*")]
        return sorted(int(name) for name in names if name.isdigit())


def _to_disk(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


class CheckpointKeeper:
    """Keeps each state as a checkpoint of the trial whose Core API context this is."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._saved: list[str] = []

    def latest(self) -> Path | None:
        uuid = self._context.info.latest_checkpoint
        if uuid is None:
            return None
        self._saved = [uuid]
        folder = Path(tempfile.mkdtemp(prefix="detslurm-search-"))
        self._context.checkpoint.download(uuid, folder)
        return folder

    def save(self, event: int, fill: Callable[[Path], None]) -> None:
        store = self._context.checkpoint
        with store.store_path({"steps_completed": event}) as (path, uuid):
            fill(path)
        self._saved.append(uuid)
        while len(self._saved) > _KEPT:
            store.delete(self._saved.pop(0))
