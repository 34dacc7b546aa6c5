"""The interface of a checkpoint storage; everything above it is the same for disks and clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

METADATA = "metadata.json"
TENSORBOARD = "tensorboard"
"""The folder for TensorBoard's files beside the checkpoints; no checkpoint has this name."""

Resources = dict[str, int]
"""Every file with its size and every directory (ends in `/`, size 0), by relative path."""

Selector = Callable[[str], bool]

Digests = Mapping[str, str]
"""The sha256 of files, in hexadecimal digits, by relative path."""


class Storage(Protocol):
    """Checkpoints under one place, each by its storage id.

    One process calls `begin` and `seal`, any number of them `put` in between. Until `seal` returns
    there is no checkpoint: it does not exist for readers, whatever was written.
    """

    @property
    def where(self) -> str:
        """The place in words, for messages; without secrets."""
        ...

    def is_visible(self, home: Path) -> bool:
        """Whether files that can't be found are missing: otherwise the storage itself may be.

        `home` is the path of the store, which is in use.
        """
        ...

    def begin(self, storage_id: str) -> None:
        """Prepare for a new checkpoint."""
        ...

    def staging(self, storage_id: str) -> Path | None:
        """The directory to write a begun checkpoint to, None where files must be `put`."""
        ...

    def put(self, storage_id: str, source: Path, names: Iterable[str]) -> Resources:
        """Store some resources of a local directory; they are safe on return, with these sizes."""
        ...

    def digests(self, storage_id: str) -> dict[str, str]:
        """Take the digests of what this process has stored of a checkpoint since the last call.

        Empty where the file system protects files, and nothing is hashed.
        """
        ...

    def flush(self, storage_id: str) -> Resources:
        """Make safe what this node wrote to `staging`; returns everything seen there."""
        ...

    def seal(self, storage_id: str, metadata: Mapping[str, Any] | None) -> Resources:
        """Make it a checkpoint; returns what this added: `metadata.json`, unless None is given."""
        ...

    def discard(self, storage_id: str) -> None:
        """Remove all of a checkpoint, sealed or not; missing files are fine."""
        ...

    def delete(self, storage_id: str, globs: Iterable[str]) -> Resources:
        """Remove what matches a pattern (`**` spans directories); returns what remains."""
        ...

    def exists(self, storage_id: str) -> bool:
        """Whether there is a complete checkpoint."""
        ...

    def resources(self, storage_id: str) -> Resources:
        """All resources of a checkpoint."""
        ...

    def metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata of a checkpoint. Raises `FileNotFoundError` if there is none."""
        ...

    def direct(self, storage_id: str) -> Path | None:
        """The directory of a checkpoint to read from, None where files must be fetched."""
        ...

    def get(
        self,
        storage_id: str,
        target: Path,
        selector: Selector | None = None,
        expected: Digests | None = None,
    ) -> None:
        """Copy a checkpoint, or what the selector takes of it, to a local directory.

        Of a bucket only the files in `expected` are copied, if it is given. A file with another
        digest raises `InvalidCheckpointException`, and is not in the target.
        """
        ...

    def put_file(self, source: Path, key: str) -> None:
        """Store one file beside the checkpoints, replacing the file with this key."""
        ...

    def remove_files(self, folder: str) -> None:
        """Remove all files whose keys lie below a folder; missing ones are fine."""
        ...


def tensorboard_folder(experiment: int, mark: str | None) -> str:
    """Where an experiment's TensorBoard files are, as a key of `put_file`.

    A storage may serve several stores that count alike: there a `mark` separates the experiments.
    """
    return f"{TENSORBOARD}{f'-{mark}' if mark else ''}/experiment/{experiment}"


def check_storage_id(storage_id: str) -> str:
    """The id itself. Raises `ValueError` if it could name anything but a checkpoint."""
    reserved = storage_id in (".", "..") or storage_id.partition("-")[0] == TENSORBOARD
    if not storage_id or "/" in storage_id or reserved:
        raise ValueError(f"{storage_id!r} is not a storage id")
    return storage_id
