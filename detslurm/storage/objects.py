"""Checkpoints as objects in a cloud's bucket, through fsspec.

An object store renames nothing: while a checkpoint is written, an object `<storage id>.partial`
stands beside it, and as long as it stands there is no checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from detslurm.errors import InvalidCheckpointException
from detslurm.storage.interface import (
    METADATA,
    Digests,
    Resources,
    Selector,
    check_storage_id,
)
from detslurm.storage.names import matching, recorded, selected, with_parents, without_files

logger = logging.getLogger("detslurm.storage")

# Object stores know no directories; an empty directory is remembered by an object in it.
_EMPTY = ".detslurm-empty-directory"
_MAGIC = frozenset("*?[")
_NOWHERE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
# Parallel transfers are all in memory at once.
_FILES_AT_ONCE, _BYTES_AT_ONCE = 64, 256 << 20
_ATTEMPTS = 3


class ObjectStore:
    """The checkpoints under one prefix of a bucket."""

    def __init__(self, protocol: str, root: str, options: Mapping[str, Any] | None = None) -> None:
        self._protocol = protocol
        self._root = root.strip("/")
        self._options = dict(options or {})
        self._sent: dict[str, dict[str, str]] = {}  # digests, by storage id

    @property
    def where(self) -> str:
        return f"{self._protocol}://{self._root}"

    @cached_property
    def _fs(self) -> Any:
        try:
            import fsspec

            # Other processes write here too: an old listing may be wrong now.
            return fsspec.filesystem(
                self._protocol,
                use_listings_cache=False,
                skip_instance_cache=True,
                **self._options,
            )
        except ImportError as error:
            raise RuntimeError(
                f"checkpoint storage on {self._protocol} needs packages that are not installed here"
                f" ({error}): `pip install 'detslurm[cloud]'`, for gs also gcsfs, for azure adlfs"
            ) from error

    def _key(self, storage_id: str, name: str = "") -> str:
        return "/".join(filter(None, (self._root, check_storage_id(storage_id), name)))

    def _marker(self, storage_id: str) -> str:
        return f"{self._key(storage_id)}.partial"

    def is_visible(self, home: Path) -> bool:
        try:
            self._fs.find(f"{self._root}/.detslurm-nothing")  # asks for a file that does not exist
        except Exception:  # cloud libraries raise errors of all kinds
            return False
        return True

    def begin(self, storage_id: str) -> None:
        """Put up the marker: until it is removed there is no checkpoint."""
        self._fs.pipe_file(self._marker(storage_id), b"")

    def _remove_marker(self, storage_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # a call before did it, and failed
            self._fs.rm_file(self._marker(storage_id))

    def staging(self, storage_id: str) -> None:
        return None

    def put(self, storage_id: str, source: Path, names: Iterable[str]) -> Resources:
        stored: Resources = {}
        for name in names:
            size = 0 if name.endswith("/") else _size(source / name)
            if size is not None:
                stored[name] = size
            elif not (source / name).is_symlink():
                raise FileNotFoundError(errno.ENOENT, "has gone", str(source / name))
            else:  # no object is a link
                logger.warning("%s leads nowhere: checkpoint %s is without it", name, storage_id)
        for files in _at_once(stored):
            keys = [self._key(storage_id, name) for name in files]
            before = {name: _version(source / name) for name in files}
            sent = {name: _digest(source / name) for name in files}
            self._fs.put([str(source / name) for name in files], keys)
            for name, key in zip(files, keys, strict=True):
                if _version(source / name) != before[name]:  # a process writes to it
                    stored[name] = int(self._fs.info(key)["size"])
                    with self._fs.open(key) as stream:
                        sent[name] = hashlib.file_digest(stream, "sha256").hexdigest()
            self._sent.setdefault(storage_id, {}).update(sent)
        self._put_empty(storage_id, stored)
        return stored

    def _put_empty(self, storage_id: str, resources: Mapping[str, int]) -> list[str]:
        """Remember the directories that have no file among the resources; by which objects."""
        empty = [f"{name}{_EMPTY}" for name in without_files(resources)]
        for name in empty:
            self._fs.pipe_file(self._key(storage_id, name), b"")
        return empty

    def digests(self, storage_id: str) -> dict[str, str]:
        return self._sent.pop(storage_id, {})

    def flush(self, storage_id: str) -> Resources:
        raise NotImplementedError(f"{self.where} has no staging directory")

    def seal(self, storage_id: str, metadata: Mapping[str, Any] | None) -> Resources:
        added: Resources = {}
        if metadata is not None:
            data = json.dumps(metadata, indent=2).encode()
            self._fs.pipe_file(self._key(storage_id, METADATA), data)
            added[METADATA] = len(data)
            digest = hashlib.sha256(data).hexdigest()
            self._sent.setdefault(storage_id, {})[METADATA] = digest
        self._remove_marker(storage_id)
        return added

    def discard(self, storage_id: str) -> None:
        self._sent.pop(storage_id, None)
        # With the marker up, half removed files are not taken for a checkpoint.
        self.begin(storage_id)
        self._remove_all_but(storage_id, ())
        self._remove_marker(storage_id)

    def delete(self, storage_id: str, globs: Iterable[str]) -> Resources:
        resources = self.resources(storage_id)
        doomed = matching(resources, globs)
        left = {name: size for name, size in resources.items() if name not in doomed}
        # A directory would go with its last object.
        kept = {*left, *self._put_empty(storage_id, left)}
        self._remove_all_but(storage_id, kept)
        return left

    def exists(self, storage_id: str) -> bool:
        return bool(self._objects(storage_id)) and not self._fs.exists(self._marker(storage_id))

    def resources(self, storage_id: str) -> Resources:
        resources = with_parents(self._objects(storage_id))
        return {n: size for n, size in resources.items() if PurePosixPath(n).name != _EMPTY}

    def metadata(self, storage_id: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._fs.cat_file(self._key(storage_id, METADATA)))
        return data

    def direct(self, storage_id: str) -> None:
        return None

    def get(
        self,
        storage_id: str,
        target: Path,
        selector: Selector | None = None,
        expected: Digests | None = None,
    ) -> None:
        chosen = selected(recorded(self.resources(storage_id), expected), selector)
        for name in with_parents(chosen):
            if name.endswith("/"):
                (target / name).mkdir(parents=True, exist_ok=True)
        # A file has its name once it is whole: its size it may have at once.
        for files in _at_once(chosen):
            paths = [target / name for name in files]
            growing = [path.with_name(f".{os.urandom(8).hex()}.tmp") for path in paths]
            try:
                self._fs.get([self._key(storage_id, n) for n in files], [str(g) for g in growing])
                for name, part, path in zip(files, growing, paths, strict=True):
                    if expected is not None and _digest(part) != expected[name]:
                        raise InvalidCheckpointException(
                            f"{name} of checkpoint {storage_id} in {self.where} is not the file"
                            " that was saved: it was replaced or damaged there. It is not loaded."
                            " Use another checkpoint"
                        )
                    part.replace(path)
            finally:
                for part in growing:
                    part.unlink(missing_ok=True)

    def put_file(self, source: Path, key: str) -> None:
        self._fs.put_file(str(source), f"{self._root}/{key}")

    def remove_files(self, folder: str) -> None:
        self._remove_keys(self._fs.find(f"{self._root}/{folder}/"))

    def _objects(self, storage_id: str) -> dict[str, int]:
        root = self._key(storage_id)
        found = self._fs.find(root, detail=True)
        sizes = {name[len(root) + 1 :]: int(info["size"]) for name, info in found.items()}
        # Others who can write to the bucket must not choose where a download writes to.
        return {n: size for n, size in sizes.items() if n and _stays_inside(PurePosixPath(n))}

    def _remove_all_but(self, storage_id: str, kept: Container[str]) -> None:
        """Remove objects until a listing shows that they are gone: the libraries don't report an
        object that a cloud could not delete."""
        for attempt in range(_ATTEMPTS):
            doomed = [name for name in self._objects(storage_id) if name not in kept]
            if not doomed:
                return
            if attempt:
                time.sleep(0.2 * 2**attempt)
            self._remove_keys([self._key(storage_id, name) for name in doomed])
        if left := [name for name in self._objects(storage_id) if name not in kept]:
            raise OSError(errno.EIO, f"{self.where} did not delete {', '.join(left[:3])}")

    def _remove_keys(self, keys: Sequence[str]) -> None:
        patterns = [key for key in keys if _MAGIC.intersection(key)]
        for key in patterns:  # rm() would remove what it matches, not what it names
            self._fs.rm_file(key)
        if plain := [key for key in keys if key not in patterns]:
            self._fs.rm(plain)


def _stays_inside(name: PurePosixPath) -> bool:
    return ".." not in name.parts and not name.is_absolute()


def _size(file: Path) -> int | None:
    """The size of a file; None where there is none, as where a link leads nowhere."""
    try:
        return file.stat().st_size
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return None


def _version(file: Path) -> tuple[int, int] | None:
    """Return a file's size and time, which differ after a write; None for a missing file."""
    with contextlib.suppress(FileNotFoundError):
        status = file.stat()
        return status.st_size, status.st_mtime_ns
    return None


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _at_once(resources: Mapping[str, int]) -> Iterator[list[str]]:
    """The files, in groups to be transferred together."""
    group: list[str] = []
    size = 0
    for name, own in resources.items():
        if name.endswith("/"):
            continue
        if group and (len(group) == _FILES_AT_ONCE or size + own > _BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(name)
        size += own
    if group:
        yield group
