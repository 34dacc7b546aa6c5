"""What engines save while training goes on: copies now, files later.

`engine.save_checkpoint()` asks the other ranks in the calling thread, and has its checkpoint engine
write the files. Another one in its place can leave that for later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from detslurm.pytorch.checkpointing._snapshot import Snapshots
from detslurm.pytorch.checkpointing._writing import UnwrittenFile


def other_writers(engines: Sequence[Any]) -> list[str]:
    """The checkpoint engines that write in another way than by `torch.save()`, by name."""
    writers = [engine.checkpoint_engine for engine in engines]
    return [type(one).__name__ for one in writers if type(one) is not TorchCheckpointEngine]


@contextmanager
def deferring(
    engines: Sequence[Any], snapshots: Snapshots, unwritten: list[UnwrittenFile]
) -> Iterator[None]:
    """In the body engines write nothing: their files are added to `unwritten`."""
    with ExitStack() as stack:
        for engine in engines:
            own = engine.checkpoint_engine
            stack.callback(setattr, engine, "checkpoint_engine", own)
            engine.checkpoint_engine = _DeferringEngine(own, snapshots, unwritten)
        yield


class _DeferringEngine(TorchCheckpointEngine):  # type: ignore[misc]
    """In the place of an engine's own while it saves."""

    def __init__(
        self, own: TorchCheckpointEngine, snapshots: Snapshots, unwritten: list[UnwrittenFile]
    ) -> None:
        # Without its parent's, which would log that there is a new one at each checkpoint.
        self.name, self.zipfile_serialization = own.name, own.zipfile_serialization
        self._own, self._snapshots, self._unwritten = own, snapshots, unwritten

    def save(self, state_dict: Any, path: str) -> None:
        """Copy a state, and leave its file for later."""
        file = Path(path)
        file.touch()  # here, where the umask is that of checkpoints
        write = partial(self._own.save, self._snapshots.take(state_dict), path)
        self._unwritten.append(UnwrittenFile(file, write))

    def preserves_storage_sharing(self) -> bool:
        """No: a copy has no more of a tensor's memory than the tensor, and needs no clone."""
        return False
