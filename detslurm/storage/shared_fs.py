"""Checkpoints as directories on a file system that every node sees.

A checkpoint is written to `<base>/<storage id>.partial/` and renamed to `<base>/<storage id>/`
when it is whole: nothing is copied, and no half checkpoint ever has a checkpoint's name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from detslurm.storage.files import (
    copy_again,
    copy_names,
    copy_selected,
    is_directory,
    list_resources,
    remove_tree,
    rename,
    sync,
    sync_names,
    sync_tree,
    write_synced,
)
from detslurm.storage.interface import (
    METADATA,
    Digests,
    Resources,
    Selector,
    Storage,
    check_storage_id,
)
from detslurm.storage.names import matching

logger = logging.getLogger("detslurm.storage")


class SharedFS:
    """The checkpoints under one base directory."""

    def __init__(self, base: Path) -> None:
        self.base = base

    @property
    def where(self) -> str:
        return str(self.base)

    def path(self, storage_id: str) -> Path:
        """Where a checkpoint is, or would be. Raises `ValueError` for an id that is no name."""
        return self.base / check_storage_id(storage_id)

    def is_visible(self, home: Path) -> bool:
        # An empty directory may be an unmounted disk; one inside of `home` is no such disk.
        try:
            if self.base.is_relative_to(home) and self.base.is_dir():
                return True
            with os.scandir(self.base) as entries:  # others may have tens of thousands there
                return next(entries, None) is not None
        except OSError:
            return False

    def begin(self, storage_id: str) -> None:
        # Closed to other writers, whatever the umask: checkpoints may be unpickled.
        # The name is unique: if it is there, the reply to its making got lost.
        self.staging(storage_id).mkdir(0o755, parents=True, exist_ok=True)

    def staging(self, storage_id: str) -> Path:
        return self.base / f"{check_storage_id(storage_id)}.partial"

    def put(self, storage_id: str, source: Path, names: Iterable[str]) -> Resources:
        staging, chosen = self.staging(storage_id), list(names)
        copy_names(source, staging, chosen, copy=copy_again)
        sync_names(staging, chosen)
        return {n: 0 if n.endswith("/") else (staging / n).lstat().st_size for n in chosen}

    def digests(self, storage_id: str) -> dict[str, str]:
        return {}  # the owner and mode of files protect them

    def flush(self, storage_id: str) -> Resources:
        staging = self.staging(storage_id)
        sync_tree(staging)
        return list_resources(staging)

    def seal(self, storage_id: str, metadata: Mapping[str, Any] | None) -> Resources:
        staging, path, added = self.staging(storage_id), self.path(storage_id), {}
        data = None if metadata is None else json.dumps(metadata, indent=2).encode()
        if data is not None:
            added[METADATA] = len(data)
        try:
            if data is not None:
                write_synced(staging / METADATA, data)
            sync(staging)
        except FileNotFoundError:
            if not is_directory(path):
                raise
            return added  # a call before has sealed it, though its answer was an error
        rename(staging, path)
        try:
            sync(self.base)
        except OSError as error:  # the checkpoint is there: only a power cut could take its name
            logger.warning("the name of checkpoint %s is not on disk yet: %s", storage_id, error)
        return added

    def discard(self, storage_id: str) -> None:
        path, staging = self.path(storage_id), self.staging(storage_id)
        remove_tree(staging)
        if is_directory(path):
            # Half removed files are not taken for a checkpoint.
            with contextlib.suppress(FileNotFoundError):  # another process removes it, too
                rename(path, staging)
        remove_tree(staging)

    def delete(self, storage_id: str, globs: Iterable[str]) -> Resources:
        path = self.path(storage_id)
        # Deepest first, so that a directory is empty by the time that it goes itself.
        for name in sorted(matching(list_resources(path), globs), reverse=True):
            target = path / name
            if name.endswith("/") and not target.is_symlink():
                target.rmdir()
            else:
                target.unlink(missing_ok=True)
        remaining = list_resources(path)
        if not remaining:
            remove_tree(path)
        return remaining

    def exists(self, storage_id: str) -> bool:
        return is_directory(self.path(storage_id))

    def resources(self, storage_id: str) -> Resources:
        return list_resources(self.path(storage_id), follow=True, without_closed=True)

    def metadata(self, storage_id: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.path(storage_id) / METADATA).read_bytes())
        return data

    def direct(self, storage_id: str) -> Path:
        return self.path(storage_id)

    def get(
        self,
        storage_id: str,
        target: Path,
        selector: Selector | None = None,
        expected: Digests | None = None,
    ) -> None:
        copy_selected(self.path(storage_id), target, selector)

    def put_file(self, source: Path, key: str) -> None:
        target = self.base / key
        self._ensure(target.parent)
        staged = target.with_name(f".{target.name}.{os.urandom(8).hex()}.tmp")  # seen by all nodes
        try:
            shutil.copyfile(source, staged)
            staged.chmod(staged.stat().st_mode & ~0o022)
            rename(staged, target)
        except BaseException:
            staged.unlink(missing_ok=True)  # on a full disk each attempt would take more of it
            raise

    def _ensure(self, folder: Path) -> None:
        """Let a directory exist that is closed to other writers."""
        if folder == self.base:
            folder.mkdir(parents=True, exist_ok=True)  # as `begin` makes it
        elif not is_directory(folder):
            self._ensure(folder.parent)
            folder.mkdir(0o755, exist_ok=True)

    def remove_files(self, folder: str) -> None:
        remove_tree(self.base / folder)


def check_access(storage: Storage) -> None:
    """Raise `OSError` where this user can't save: now, not at the first checkpoint.

    A disk that is full or does not answer may do both by then.
    """
    probe = str(uuid.uuid4())  # what remains of it is a leftover, as of other checkpoints
    try:
        storage.begin(probe)
        storage.discard(probe)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            what = f"no checkpoint can be saved in {storage.where}: {error.strerror}"
            raise OSError(error.errno, what) from None
