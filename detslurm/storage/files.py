"""Trees of files: list, copy, bring to the disk, remove."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from detslurm.storage.interface import Resources, Selector
from detslurm.storage.names import selected

logger = logging.getLogger("detslurm.storage")


def list_resources(root: Path, *, follow: bool = False, without_closed: bool = False) -> Resources:
    """Every file with its size and every directory (name ends in `/`, size 0), by relative path.

    With `follow` a link counts as its target, as far as it has one. Pipes, sockets and devices,
    whose content can't be copied, are left out; so is, `without_closed`, a link to a directory that
    is closed to this user, as another user's frozen code is, or to a path below it.
    Raises OSError for a directory that can't be listed.
    """
    found: Resources = {}
    for directory, subdirs, files in os.walk(root, onerror=raise_unless_gone, followlinks=follow):
        here = Path(directory)
        if without_closed:
            subdirs[:] = [name for name in subdirs if not _leads_to_closed(here / name)]
        for name in subdirs:
            found[f"{(here / name).relative_to(root)}/"] = 0
        for name in files:
            if (size := _size(here / name, follow, without_closed)) is not None:
                found[str((here / name).relative_to(root))] = size
        if follow:
            subdirs[:] = [name for name in subdirs if not _leads_up(here / name, root)]
    return dict(sorted(found.items()))


def is_directory(path: Path) -> bool:
    """Whether there is such a directory. Raises `OSError` where that can't be known now."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def raise_unless_gone(error: OSError) -> None:
    """For `os.walk`: a missing directory has no files, an unreadable directory may have some."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _size(path: Path, follow: bool, without_closed: bool) -> int | None:
    found = path.lstat()
    if follow and stat.S_ISLNK(found.st_mode):
        try:
            found = path.stat()
        except OSError as error:  # else it leads to nothing
            if without_closed and isinstance(error, PermissionError):
                return None
    known = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
    return found.st_size if known else None


def _leads_up(path: Path, root: Path) -> bool:
    """Whether a path is a link to a directory above it, which has no end."""
    if not path.is_symlink():
        return False
    above = [parent for parent in path.parents if parent.is_relative_to(root)]
    return any(parent.resolve().is_relative_to(path.resolve()) for parent in above)


def _leads_to_closed(path: Path) -> bool:
    """Whether a link leads to a directory that may not be listed."""
    if not stat.S_ISLNK(path.lstat().st_mode):
        return False  # a directory of the checkpoint itself that is closed now is an error
    try:
        os.scandir(path).close()
    except OSError as error:  # other errors are raised when the directory is listed
        return isinstance(error, PermissionError)
    return False


def copy_selected(source: Path, target: Path, selector: Selector | None) -> None:
    """Copy a tree, or the selector's part of it; a selected file brings its directories."""
    found = list_resources(source, follow=True, without_closed=True)
    names = selected(found, selector)
    copy_names(source, target, names, copy=copy_whole)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file, which has its name once it is whole: others may read it, and ranks of other
    nodes copy it to the same directory."""
    growing = target.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        shutil.copy2(source, growing)
        growing.replace(target)
    finally:
        growing.unlink(missing_ok=True)


def copy_again(source: Path, target: Path) -> None:
    """Copy a file, also over the write-protected file of an attempt before."""
    try:
        shutil.copy2(source, target)
    except PermissionError:
        target.unlink(missing_ok=True)
        shutil.copy2(source, target)


def copy_names(
    source: Path, target: Path, names: Iterable[str], *, copy: Callable[..., Any] = shutil.copy2
) -> None:
    """Copy some resources of a tree; of a link what it leads to, if there is something."""
    for name in names:
        destination = target / name
        if name.endswith("/"):
            destination.mkdir(parents=True, exist_ok=True)
        else:
            destination.parent.mkdir(parents=True, exist_ok=True)
            origin = source / name
            if leads_nowhere(origin):
                _copy_link(origin, destination)
            else:
                copy(origin, destination)


def leads_nowhere(path: Path) -> bool:
    """Whether a path is a link to nothing, or to itself. Raises `OSError` where that can't be known
    now, as `pathlib` and `shutil` don't."""
    try:
        path.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return stat.S_ISLNK(path.lstat().st_mode)
    return False


def _copy_link(source: Path, target: Path) -> None:
    leads_to = source.readlink()
    try:
        target.symlink_to(leads_to)
    except FileExistsError:  # of an attempt before, or of another rank
        if target.readlink() != leads_to:
            target.unlink()
            target.symlink_to(leads_to)


def sync_tree(root: Path) -> None:
    """Bring a tree to the disk, file by file, closed to other writers, ready for another name.

    Absolute links into it become relative. Pipes, sockets and devices are removed.
    """
    _sync_directory(root, root)


def _sync_directory(here: Path, root: Path) -> None:
    try:
        with os.scandir(here) as entries:
            found = list(entries)
    except FileNotFoundError:  # it has gone meanwhile
        return
    for entry in found:
        path = Path(entry.path)
        if entry.is_symlink():
            make_relative(path, root)
        elif entry.is_dir(follow_symlinks=False):
            _sync_directory(path, root)
        elif entry.is_file(follow_symlinks=False):
            sync(path, guard=True)
        else:
            name = path.relative_to(root)
            logger.warning("%s is no file to keep: checkpoint %s is without it", name, root.stem)
            path.unlink(missing_ok=True)
    sync(here, guard=True)


def make_relative(link: Path, root: Path) -> None:
    """Make an absolute link into a tree relative, so that it stays right when the tree moves."""
    target = link.readlink()
    if target.is_absolute() and target.is_relative_to(root):
        # Other nodes do the same at the same moment, or list the tree already.
        staged = root.with_name(f".{root.name}.{os.urandom(8).hex()}.tmp")
        staged.symlink_to(os.path.relpath(target, link.parent))
        staged.replace(link)


def sync_names(root: Path, names: Iterable[str]) -> None:
    """Bring some resources of a tree to the disk, closed to other writers."""
    for path in (root / name for name in names):
        if not path.is_symlink():
            sync(path, guard=True)
    sync(root)


def sync(path: Path, *, guard: bool = False) -> None:
    """Bring one file or directory to the disk; with `guard`, closed to other writers."""
    fd = os.open(path, os.O_RDONLY)
    try:
        if guard:
            _guard(fd)
        os.fsync(fd)
    except OSError as err:
        # Some file systems can't sync a directory by itself; they order its entries on their own.
        if err.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def _guard(fd: int) -> None:
    """Take away what the umask left to others: in a shared store they could change a checkpoint."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o022:
        with contextlib.suppress(PermissionError):  # of another owner, or a file system's own modes
            os.fchmod(fd, mode & ~0o022)


def write_synced(path: Path, data: bytes) -> None:
    """Write a file that is either absent, the old file, or the new file, and on disk on return."""
    staged = path.with_name(f".{path.name}.tmp")
    with staged.open("wb") as out:
        _guard(out.fileno())
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    rename(staged, path)


def rename(source: Path, target: Path) -> None:
    """Give a file or tree another name, in place of a file that has it.

    After an error the names decide: the server may have done it, and only the reply got lost.
    """
    try:
        source.rename(target)
    except OSError:
        list(target.parent.iterdir())  # clients of file servers forget old answers when they list
        if _has_name(source) or not _has_name(target):
            raise


def _has_name(path: Path) -> bool:
    """Whether there is such a name. Raises `OSError` where that can't be known now."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def remove_tree(path: Path, attempts: int = 5) -> None:
    """Remove a tree; a missing tree is fine."""
    for attempt in range(attempts):
        try:
            shutil.rmtree(path, onerror=_raise_unless_gone)
        except OSError as err:
            # On NFS a file that a process still has open lives on as .nfsXXXX for a moment.
            if err.errno not in (errno.ENOTEMPTY, errno.EBUSY) or attempt == attempts - 1:
                raise
            time.sleep(0.2 * 2**attempt)
        else:
            return


def _raise_unless_gone(function: object, path: str, found: Any) -> None:
    """Another process removes the same, or a file server answers a repeated request."""
    raise_unless_gone(found[1])
