"""Checkpoints as directories on a file system that every node sees.

A checkpoint lives in `<base>/<storage id>/` from its first byte; nothing is copied when it is
committed. Its `metadata.json` is written last, so a directory without it is not a checkpoint.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

METADATA = "metadata.json"

Resources = dict[str, int]
Selector = Callable[[str], bool]


class SharedFS:
    """The checkpoints under one base directory."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def path(self, storage_id: str) -> Path:
        """Where a checkpoint is, or would be. Raises `ValueError` for an id that is no name."""
        if not storage_id or "/" in storage_id or storage_id in (".", ".."):
            raise ValueError(f"{storage_id!r} is not a storage id")
        return self.base / storage_id

    def begin(self, storage_id: str) -> Path:
        """Make the directory of a new checkpoint."""
        path = self.path(storage_id)
        path.mkdir(parents=True)
        return path

    def seal(self, storage_id: str, metadata: Mapping[str, Any] | None) -> Resources:
        """Bring every file to the disk, then write the metadata; returns all resources.

        `metadata` None leaves `metadata.json` out.
        """
        path = self.path(storage_id)
        _sync_tree(path)
        if metadata is not None:
            _write_synced(path / METADATA, json.dumps(metadata, indent=2).encode())
        _sync(path)
        _sync(self.base)
        return list_resources(path)

    def discard(self, storage_id: str) -> None:
        """Remove what a failed or deleted checkpoint left; missing files are fine."""
        _remove_tree(self.path(storage_id))

    def exists(self, storage_id: str) -> bool:
        return self.path(storage_id).is_dir()

    def metadata(self, storage_id: str) -> dict[str, Any]:
        """The metadata of a checkpoint. Raises `FileNotFoundError` if there is none."""
        data: dict[str, Any] = json.loads((self.path(storage_id) / METADATA).read_bytes())
        return data


def list_resources(root: Path) -> Resources:
    """Every file with its size and every directory (name ends in `/`, size 0), by relative path."""
    found: Resources = {}
    for directory, subdirs, files in os.walk(root):
        here = Path(directory)
        for name in subdirs:
            found[f"{(here / name).relative_to(root)}/"] = 0
        for name in files:
            found[str((here / name).relative_to(root))] = (here / name).lstat().st_size
    return dict(sorted(found.items()))


def copy_selected(source: Path, target: Path, selector: Selector | None) -> None:
    """Copy a tree, or what the selector takes of it; a selected file brings its directories."""
    for name in list_resources(source):
        if selector is not None and not selector(name):
            continue
        destination = target / name
        if name.endswith("/"):
            destination.mkdir(parents=True, exist_ok=True)
        else:
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, destination, follow_symlinks=False)


def _sync_tree(root: Path) -> None:
    for directory, _, files in os.walk(root):
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                _sync(path)
        if directory != str(root):
            _sync(Path(directory))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as err:
        # Some file systems can't sync a directory by itself; they order its entries on their own.
        if err.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _write_synced(path: Path, data: bytes) -> None:
    staged = path.with_name(f".{path.name}.tmp")
    with staged.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    staged.replace(path)


def _remove_tree(path: Path, attempts: int = 5) -> None:
    for attempt in range(attempts):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as err:
            # On NFS a file that somebody still has open lives on as .nfsXXXX for a moment.
            if err.errno not in (errno.ENOTEMPTY, errno.EBUSY) or attempt == attempts - 1:
                raise
            time.sleep(0.2 * 2**attempt)
        else:
            return
