"""Nodes that remember what a file server said: names, missing names, sizes.

Stands in for `os` at the store's door to the disk. A node's memory never expires here; it goes only
by what makes a real client ask again, which is the harshest that a test can be:

- "nfs": opening or listing a folder asks which names it has; opening a file asks for its size. A
  name that is missing stays so until then, and so does a folder in the middle of a path.
- "fuse" (with long time-outs for entries and attributes): only listing a folder asks, and whatever
  is about to create the very name. A file that was replaced is stale.
"""

from __future__ import annotations

import errno
import functools
import os
import posix
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest import mock

from detslurm.store import fs, run_log

KINDS = ("coherent", "nfs", "fuse")

P = ParamSpec("P")
R = TypeVar("R")

_nodes: Nodes | None = None


class Nodes:
    """The nodes around one directory of a file server; one of them is where the code runs now."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind = str(root), kind
        self._known: dict[str, Node] = {}
        self.here = self.node("here")

    def node(self, name: str) -> Node:
        """The node of that name, which remembers nothing at first."""
        return self._known.setdefault(name, Node(self.root, fuse=self.kind == "fuse"))

    def __getattr__(self, name: str) -> Any:
        """As `os` on the node where the code runs now."""
        own = getattr(self.here, name, None)
        return getattr(os, name) if own is None else own


@contextmanager
def nodes(root: Path, kind: str) -> Iterator[None]:
    """Let the store see what lies below `root` through a node's memory."""
    global _nodes
    if kind == "coherent":
        yield
        return
    _nodes = Nodes(root, kind)
    try:
        with mock.patch.object(fs, "os", _nodes), mock.patch.object(run_log, "os", _nodes):
            yield
    finally:
        _nodes = None


@contextmanager
def on(name: str) -> Iterator[None]:
    """Act on another node; where there are none, here."""
    if _nodes is None:
        yield
        return
    before, _nodes.here = _nodes.here, _nodes.node(name)
    try:
        yield
    finally:
        _nodes.here = before


def elsewhere(act: Callable[P, R]) -> Callable[P, R]:
    """Something that happens on another node than the test's own."""

    @functools.wraps(act)
    def there(*args: P.args, **kwargs: P.kwargs) -> R:
        with on("elsewhere"):
            return act(*args, **kwargs)

    return there


class Node:
    """One node: the functions of `os` that the store uses, and what it remembers."""

    def __init__(self, root: str, *, fuse: bool) -> None:
        self._root, self._fuse = root, fuse
        self._names: dict[str, int | None] = {}  # path -> inode, None for a missing one
        self._seen: dict[str, frozenset[str]] = {}  # folder -> its names when last asked for
        self._sizes: dict[str, int] = {}
        self._handles: dict[int, str] = {}

    # -- the memory ------------------------------------------------------------------------------

    def _covers(self, path: str) -> bool:
        return path == self._root or path.startswith(f"{self._root}/")

    def _look_up(self, path: str) -> int:
        """The inode behind a name, from memory where there is one."""
        folder = os.path.dirname(path)
        if self._covers(folder):
            self._look_up(folder)
        if path not in self._names:
            self._seen.setdefault(folder, _names_in(folder))
            self._names[path] = _inode(path)
        inode = self._names[path]
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _reach(self, path: str) -> None:
        """Walk to the folder of a name that is about to be made or removed."""
        folder = os.path.dirname(path)
        if self._covers(folder):
            self._look_up(folder)

    def _ask(self, folder: str) -> None:
        """The server says what a folder holds."""
        names = _names_in(folder)
        if self._fuse or names != self._seen.get(folder):
            for path in [path for path in tuple(self._names) if os.path.dirname(path) == folder]:
                del self._names[path]
                self._sizes.pop(path, None)
        self._seen[folder] = names

    def _made(self, path: str) -> None:
        """The server answered to the making of a name: it is known whatever the answer was."""
        before, self._names[path] = self._names.get(path), _inode(path)
        if self._names[path] != before:
            self._sizes.pop(path, None)

    # -- functions of os -------------------------------------------------------------------------

    def open(self, path: fs.AnyPath, flags: int, mode: int = 0o777) -> int:
        name = os.fspath(path)
        if not self._covers(name):
            return os.open(name, flags, mode)
        if flags & os.O_CREAT:
            self._reach(name)
            try:
                handle = os.open(name, flags, mode)
            finally:
                self._made(name)
        else:
            inode = self._look_up(name)
            if self._fuse and _inode(name) != inode:
                raise _error(errno.ESTALE, name)
            handle = os.open(name, flags, mode)
            if flags & os.O_DIRECTORY and not self._fuse:
                self._ask(name)
        if self._fuse:
            self._handles[handle] = name
            self._sizes.setdefault(name, posix.fstat(handle).st_size)
        return handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        os.close(handle)

    def _left(self, handle: int, at: int, count: int) -> int:
        """How much of what is to be read this node knows to be there."""
        size = self._sizes.get(self._handles.get(handle, ""))
        return count if size is None else max(0, min(count, size - at))

    def read(self, handle: int, count: int) -> bytes:
        return os.read(handle, self._left(handle, posix.lseek(handle, 0, os.SEEK_CUR), count))

    def pread(self, handle: int, count: int, at: int) -> bytes:
        return os.pread(handle, self._left(handle, at, count), at)

    def fstat(self, handle: int) -> Any:
        status = os.fstat(handle)
        size = self._left(handle, 0, status.st_size)
        known = {
            name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_ino", "st_mtime")
        }
        return types.SimpleNamespace(st_size=size, **known)

    def write(self, handle: int, data: Any) -> int:
        return self._written(handle, os.write(handle, data))

    def pwrite(self, handle: int, data: Any, at: int) -> int:
        return self._written(handle, os.pwrite(handle, data, at))

    def _written(self, handle: int, count: int) -> int:
        if handle in self._handles:
            self._sizes[self._handles[handle]] = posix.fstat(handle).st_size
        return count

    def stat(self, path: fs.AnyPath) -> Any:
        name = os.fspath(path)
        if not self._covers(name):
            return os.stat(name)
        self._look_up(name)
        return os.stat(name) if _inode(name) else None  # gone, and this node does not know

    def listdir(self, path: fs.AnyPath) -> list[str]:
        name = os.fspath(path)
        if self._covers(name):
            self._look_up(name)
        found = os.listdir(name)
        self._ask(name)
        return found

    def link(self, source: str, target: str) -> None:
        self._reach(target)
        if not self._covers(source):
            if self._fuse:
                self._made(target)
            elif self._names.get(target, 0) is None:
                raise _error(errno.EXDEV, target)
        try:
            os.link(source, target)
        finally:
            if self._covers(source):
                self._made(target)

    def mkdir(self, path: fs.AnyPath, mode: int = 0o777) -> None:
        name = os.fspath(path)
        if not self._covers(name):
            return os.mkdir(name, mode)
        self._reach(name)
        try:
            os.mkdir(name, mode)
        finally:
            self._made(name)

    def makedirs(self, path: fs.AnyPath, mode: int = 0o777, exist_ok: bool = False) -> None:
        name = os.fspath(path)
        folder = os.path.dirname(name)
        if self._covers(folder) and self._names.get(folder, _inode(folder)) is None:
            self.makedirs(folder, exist_ok=True)
        try:
            self.mkdir(name, mode)
        except FileExistsError:
            if not exist_ok:
                raise

    def rename(self, source: fs.AnyPath, target: fs.AnyPath) -> None:
        os.rename(source, target)
        self._names[os.fspath(source)] = None
        self._made(os.fspath(target))

    def unlink(self, path: str) -> None:
        self._reach(path)
        os.unlink(path)
        self._names[path] = None


def _names_in(folder: str) -> frozenset[str]:
    try:
        return frozenset(posix.listdir(folder))
    except OSError:
        return frozenset()


def _inode(path: str) -> int | None:
    try:
        return posix.lstat(path).st_ino
    except OSError:
        return None


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
