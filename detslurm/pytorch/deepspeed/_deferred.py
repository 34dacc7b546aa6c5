"""Saves engines while training goes on: copies now, files later.

`engine.save_checkpoint()` asks the other ranks in the calling thread, and has its checkpoint engine
write the files. Another engine in its place can leave that for later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from detslurm.core._retries import keep_trying
from detslurm.pytorch.checkpointing._disk_full import faults_of_torch
from detslurm.pytorch.checkpointing._snapshot import Snapshots
from detslurm.pytorch.checkpointing._writing import UnwrittenFile
from detslurm.storage.files import is_directory


def other_writers(engines: Sequence[Any]) -> list[str]:
    """The checkpoint engines that write in another way than by `torch.save()`, by name."""
    writers = [engine.checkpoint_engine for engine in engines]
    return [type(one).__name__ for one in writers if type(one) is not TorchCheckpointEngine]


@contextmanager
def retrying(engines: Sequence[Any]) -> Iterator[None]:
    """In the body engines try each file for minutes while the file system fails."""
    with _replaced(engines, _RetryingEngine):
        yield


@contextmanager
def deferring(
    engines: Sequence[Any], snapshots: Snapshots, unwritten: list[UnwrittenFile]
) -> Iterator[None]:
    """In the body engines write nothing: their files are added to `unwritten`."""
    with _replaced(engines, partial(_DeferringEngine, snapshots, unwritten)):
        yield


@contextmanager
def _replaced(engines: Sequence[Any], make: Callable[[Any], Any]) -> Iterator[None]:
    """Another checkpoint engine in the place of each that writes by `torch.save()`."""
    with ExitStack() as stack:
        for engine in engines:
            own = engine.checkpoint_engine
            if type(own) is TorchCheckpointEngine:
                stack.callback(setattr, engine, "checkpoint_engine", own)
                engine.checkpoint_engine = make(own)
        yield


class _RetryingEngine(TorchCheckpointEngine):  # type: ignore[misc]
    """In the place of an engine's own: other ranks wait inside of DeepSpeed for a failed rank."""

    def __init__(self, own: TorchCheckpointEngine) -> None:
        # Without its parent's, which would log a new engine at each checkpoint.
        self.name, self.zipfile_serialization = own.name, own.zipfile_serialization
        self._own = own

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        def make() -> None:
            try:
                self._own.makedirs(path, exist_ok)
            except FileExistsError:  # also where Python could not look at the existing file
                if not (exist_ok and is_directory(Path(path))):
                    raise

        keep_trying(make)

    def save(self, state_dict: Any, path: str) -> None:
        """Write a state to its file."""

        def write() -> None:
            with faults_of_torch(Path(path)):
                self._own.save(state_dict, path)

        keep_trying(write)

    def load(self, path: str, map_location: Any = None) -> Any:
        """The state in a file."""
        return keep_trying(lambda: self._own.load(path, map_location=map_location))


class _DeferringEngine(_RetryingEngine):
    """In the place of an engine's own while it saves in the background."""

    def __init__(
        self, snapshots: Snapshots, unwritten: list[UnwrittenFile], own: TorchCheckpointEngine
    ) -> None:
        super().__init__(own)
        self._snapshots, self._unwritten = snapshots, unwritten

    def save(self, state_dict: Any, path: str) -> None:
        """Copy a state, and leave its file for later."""
        file = Path(path)
        file.touch()  # here, where the umask is that of checkpoints
        write = partial(super().save, self._snapshots.take(state_dict), path)
        self._unwritten.append(UnwrittenFile(file, write))

    def preserves_storage_sharing(self) -> bool:
        """No: a copy has no more of a tensor's memory than the tensor, and needs no clone."""
        return False
