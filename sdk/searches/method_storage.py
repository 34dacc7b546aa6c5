"""Where search methods are saved: a directory of the user's, or checkpoints of an experiment."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from detslurm.errors import CheckpointNotFound
from detslurm.store import fs

# The newest is used; its predecessor is kept in case a person needs it.
_KEPT = 2
# The checkpoints at the time of a save: a later run removes old ones.
_BEFORE_FILE = "before.json"


class DirectoryStorage:
    """Keeps each state as `event_<n>` below a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextlib.contextmanager
    def latest(self) -> Iterator[Path | None]:
        """A directory with the last save, None before the first time."""
        numbers = self._numbers()
        yield self._folder / f"event_{numbers[-1]}" if numbers else None

    def save(self, event: int, fill: Callable[[Path], None]) -> None:
        """Let `fill` write to a directory, and keep it: whole, or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with fs.staged_directory(self._folder / f"event_{event}") as stage:
            fill(Path(stage))
            _to_disk(Path(stage))
        with contextlib.suppress(OSError):  # it is saved: old ones can go the next time
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


class CheckpointStorage:
    """Keeps each state as a checkpoint of the trial whose Core API context this is."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._saved: list[str] = []

    @contextlib.contextmanager
    def latest(self) -> Iterator[Path | None]:
        uuid = self._context.info.latest_checkpoint
        if uuid is None:
            yield None
            return
        with self._context.checkpoint.restore_path(uuid) as folder:
            self._saved = [*json.loads((folder / _BEFORE_FILE).read_text()), uuid]
            yield folder

    def save(self, event: int, fill: Callable[[Path], None]) -> None:
        store = self._context.checkpoint
        with store.store_path({"steps_completed": event}) as (path, uuid):
            fill(path)
            (path / _BEFORE_FILE).write_text(json.dumps(self._saved))
        self._saved.append(uuid)
        while len(self._saved) > _KEPT:
            with contextlib.suppress(CheckpointNotFound):  # an earlier run was so far, too
                store.delete(self._saved.pop(0))


MethodStorage = DirectoryStorage | CheckpointStorage
