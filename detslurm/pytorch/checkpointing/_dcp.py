"""Tensors that all ranks write together and any number of ranks reads: torch's own format for them.

Imported when there is something to write or read so: it takes seconds.
"""

from __future__ import annotations

import enum
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.distributed.checkpoint as dcp

_METADATA = "torch.distributed.checkpoint.metadata"
_PLAIN = {
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}


def write(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name; of a tensor spread over the ranks each writes its part.

    A collective of all ranks of torch's process group.
    """
    with _plain_errors():
        dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(folder))


def read_into(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Read into tensors by name, each of which has the right size; of a tensor spread over the
    ranks each reads its part. A collective where there is a process group."""
    with warnings.catch_warnings(), _plain_errors():
        # Without a process group there is this process alone, and that is meant.
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable")
        dcp.load(
            dict(tensors),
            storage_reader=_Reader(folder),
            no_dist=not torch_dist.is_initialized(),
        )


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Torch's own error is not an `Exception`: code that cleans up after errors would miss it."""
    try:
        yield
    except dcp.CheckpointException as err:
        causes = {str(cause): None for cause, _ in err.failures.values()}
        raise RuntimeError(f"sharded tensors: {'; '.join(causes)}") from err


class _Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """Torch unpickles the table of contents; this reads it without running code that is in it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        with (Path(self.path) / ".metadata").open("rb") as stream:
            metadata = _PlainUnpickler(stream).load()
        metadata.storage_meta = metadata.storage_meta or dcp.metadata.StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _member(kind: Any, name: str) -> Any:
    if isinstance(kind, enum.EnumMeta):
        return kind[name]
    raise pickle.UnpicklingError(f"a table of tensors is plain data, not {name} of {kind}")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in ("torch", _METADATA) else None
        if module == _METADATA and isinstance(found, type) and found.__module__ == _METADATA:
            return found
        if module == "torch" and isinstance(found, torch.dtype):
            return found
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # some Pythons resolve the members of enumerations so
        raise pickle.UnpicklingError(f"a table of tensors is plain data, not {module}.{name}")
