"""The files that the ranks of a trial add, batch by batch, to one directory of outputs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from detslurm._base.node_files import own_name
from detslurm.storage import Resources, Storage, list_resources
from detslurm.storage.files import make_relative, remove_tree, rename, sync, sync_names

_UNFINISHED = ".partial"
_SYNCS_AT_ONCE = 4


class OutputFiles:
    """One rank's files, in a folder of its own.

    A file has its name once it is whole, and replaces the file with this name. It counts from the
    checkpoint on that commits it.
    """

    def __init__(self, storage: Storage, uuid: str, folder: str) -> None:
        self._storage = storage
        self._uuid = uuid
        self._folder = folder
        self._new: Resources = {}
        # Files go to the disk while the next batches are processed.
        self._syncs: list[Future[None]] = []
        self._pool = ThreadPoolExecutor(_SYNCS_AT_ONCE, "detslurm-outputs")

    def remove_unfinished(self) -> None:
        """Remove what killed ranks have left in the middle of a block, before any rank begins."""
        home = self._storage.direct(self._uuid)
        for left in home.glob(f".*{_UNFINISHED}") if home is not None else ():
            remove_tree(left)

    @contextlib.contextmanager
    def added(self) -> Iterator[Path]:
        """Give an empty directory; its files join the outputs when the block ends. When the block
        raises, none of them do."""
        home = self._storage.direct(self._uuid)
        if home is None:
            with tempfile.TemporaryDirectory(prefix=own_name("")) as name:
                source = Path(name) / self._folder
                source.mkdir()
                yield source
                self._send(source)
            return
        growing = home / f".{self._folder}.{os.urandom(8).hex()}{_UNFINISHED}"
        growing.mkdir(0o755, parents=True)
        try:
            yield growing
            self._move(growing, home / self._folder)
        finally:
            remove_tree(growing)

    def _send(self, source: Path) -> None:
        names = [f"{self._folder}/{name}" for name in list_resources(source)]
        self._new |= self._storage.put(self._uuid, source.parent, names)
        self._storage.digests(self._uuid)  # which it would keep until then

    def _move(self, source: Path, target: Path) -> None:
        target.mkdir(0o755, exist_ok=True)
        found = list_resources(source)
        for name in found:  # a directory comes before its entries
            path = source / name
            if name.endswith("/") and not path.is_symlink():
                (target / name).mkdir(0o755, exist_ok=True)
                continue
            if is_link := path.is_symlink():
                make_relative(path, source)
            rename(path, target / name)
            if not is_link:
                self._syncs.append(self._pool.submit(sync, target / name, guard=True))
        self._new |= {f"{self._folder}/{name}": size for name, size in found.items()}

    def taken(self) -> Resources:
        """The new files since the last call, on disk, with their sizes; names are relative to the
        outputs."""
        new, self._new = self._new, {}
        syncs, self._syncs = self._syncs, []
        for one in syncs:
            one.result()
        home = self._storage.direct(self._uuid)
        if home is not None and new:  # their names
            sync_names(home, [f"{self._folder}/", *(name for name in new if name.endswith("/"))])
        return new
