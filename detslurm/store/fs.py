"""The only door to the file system: every primitive that the store's promises rest on.

All calls go through `os` by attribute, so that a test can fail or kill each one of them.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from detslurm._base import access
from detslurm.store.errors import LINKLESS, CorruptRecord, NoHardLinks, StoreError, explained

# A file that lies on no disk: to link it into a store can only fail.
_OTHER_FILE_SYSTEM: Final = "/proc/version"

# ESTALE means that a name now leads to another file: opening it again by name finds that file.
REOPENS: Final = 10

# As much as a processor's cache holds: memory that is used again costs a fifth of new memory.
PIECE: Final = 1 << 18

# In a shared store others choose what a file is, and how long: a sparse one costs them nothing.
LARGEST_FILE: Final = 1 << 30
"""The bytes of the largest file that is read whole."""

LARGEST_LOG: Final = 8 << 30
"""The bytes of the longest log that is read."""

AnyPath = str | os.PathLike[str]
T = TypeVar("T")

_counter = itertools.count()


def put_if_absent(path: AnyPath, data: bytes, *, secret: bool = False) -> bool:
    """Make `path` exist with exactly `data`, whole at once; False where it existed already.

    A `secret` is its owner's alone, in a shared store too.
    """
    target = os.fspath(path)
    temporary = temporary_name(target)
    write_new(temporary, data, secret=secret)
    try:
        won = _link(temporary, target)
    finally:
        discard(temporary)
    if won:
        sync_directory(os.path.dirname(target))
    return won


def _link(source: str, target: str) -> bool:
    try:
        os.link(source, target)
        return True
    except OSError as error:
        # On NFS the link may exist though its reply got lost: the link count is the only proof.
        if _link_count(source) == 2:
            return True
        if error.errno == errno.EEXIST:
            return False
        if error.errno in LINKLESS:
            raise NoHardLinks(
                f"{os.path.dirname(target)} has no hard links ({error.strerror}); put the store on"
                " a file system that has them (`detslurm doctor DIR` probes one)"
            ) from error
        raise explained(error, target) from error


def link_new(source: str, target: str) -> bool:
    """Give `source` the further name `target`; False where that name is taken.

    The caller tries other names then. It must check by content whether a taken name was its own,
    because the reply to a link may get lost and the repeated request find the name taken.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if _link_count(source) < 2:
            raise explained(error, target) from error
    return True


def _link_count(path: str) -> int:
    found = _fresh_stat(path)
    return found.st_nlink if found else 0


def _fresh_stat(path: AnyPath) -> os.stat_result | None:
    # Opening asks the server again, where a plain stat could be answered from the cache.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.fstat(handle)
        finally:
            close_quietly(handle)
    except OSError:
        return None


def temporary_name(target: str) -> str:
    """A name beside `target` that no other process of any node uses."""
    folder, name = os.path.split(target)
    unique = f"{os.uname().nodename}-{os.getpid()}-{next(_counter)}-{os.urandom(4).hex()}"
    return os.path.join(folder, f".{name}.{unique}.tmp")


def create(path: str, flags: int, *, secret: bool = False) -> int:
    """Open a file that may be new; it may be read by whom its directory is shared with."""
    mode = access.PRIVATE_FILE if secret else access.file_mode(os.path.dirname(path))
    handle = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, mode)
    if mode != access.PRIVATE_FILE:
        with suppress(OSError):  # some file systems have fixed modes
            os.fchmod(handle, mode)  # the umask may have cut it
    if owner := access.inherited_owner(os.path.dirname(path)):
        with suppress(OSError):  # the root of a user namespace can't
            os.fchown(handle, *owner)
    return handle


def write_new(path: str, data: bytes, *, sync: bool = True, secret: bool = False) -> None:
    """Create `path` with `data`, on disk when this returns; nothing is left behind on failure."""
    try:
        handle = create(path, os.O_WRONLY | os.O_EXCL, secret=secret)
    except OSError as error:
        raise explained(error, path) from error
    try:
        try:
            write_all(handle, data)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)  # NFS reports a full disk here at the latest
    except OSError as error:
        discard(path)
        raise explained(error, path) from error


def touch_new(path: str) -> bool:
    """Create an empty file; False where its directory is missing."""
    try:
        os.close(create(path, os.O_WRONLY | os.O_EXCL))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise explained(error, path) from error
    return True


def renew(path: AnyPath) -> bool:
    """Give a file the present time of its server; False where there is no such file.

    Another user's file keeps its time.
    """
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES):
            raise explained(error, os.fspath(path)) from error
    return True


def write_all(handle: int, data: bytes) -> None:
    """Write all of `data`, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def discard(path: str) -> None:
    """Remove a temporary name if it is there."""
    with suppress(OSError):  # a leftover temporary name is litter, never a fact
        os.unlink(path)


def replace_file(path: AnyPath, data: bytes, *, sync: bool = True, secret: bool = False) -> None:
    """Publish a new snapshot of a rebuildable file: readers see the old file or the new file.

    Without `sync` a power cut may tear it: for files that check themselves. A `secret` is its
    owner's alone, in a shared store too.
    """
    target = os.fspath(path)
    temporary = temporary_name(target)
    write_new(temporary, data, sync=sync, secret=secret)
    try:
        os.rename(temporary, target)
    except OSError as error:
        discard(temporary)
        raise explained(error, target) from error


def read_file(path: AnyPath, *, expected: bool = False) -> bytes | None:
    """The content of `path`, opened by its exact name; None where there is none.

    With `expected` the caller knows that the name exists, or wants the freshest answer: a "no"
    that this node remembers is not believed before the file server was asked again. Raises
    `CorruptRecord` for a link, a pipe, a device, and a file that is too large.
    """
    name = os.fspath(path)
    data = _by_name(name, _read_once)
    if data is None and expected:
        forget_missing(name)
        data = _by_name(name, _read_once)
    return data


def read_pieces(path: AnyPath, *, start: int = 0) -> Iterator[bytes]:
    """The bytes of `path` from byte `start` on, piece by piece; none where there are none.

    For logs alone: of a file that is replaced meanwhile the pieces would be of both. Raises
    `CorruptRecord` as `read_file` does.
    """
    name = os.fspath(path)
    for attempt in range(REOPENS):
        try:
            with _opened(name, LARGEST_LOG) as handle:
                os.lseek(handle, start, os.SEEK_SET)
                while piece := os.read(handle, PIECE):
                    yield piece
                    start += len(piece)
                return
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            _before_reopening(name, error, attempt)


def _by_name(path: AnyPath, look: Callable[[str], T]) -> T | None:
    """The result of `look` by a name; None where there is no such name."""
    name = os.fspath(path)
    for attempt in range(REOPENS):
        try:
            return look(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _before_reopening(name, error, attempt)
    raise AssertionError("unreachable")


def _before_reopening(name: str, error: OSError, attempt: int) -> None:
    if error.errno != errno.ESTALE or attempt == REOPENS - 1:
        raise explained(error, name) from error
    refresh(os.path.dirname(name))


def _read_once(name: str) -> bytes:
    with _opened(name, LARGEST_FILE) as handle:
        chunks = [os.read(handle, os.fstat(handle).st_size + 1)]
        while chunks[-1]:
            chunks.append(os.read(handle, 1 << 20))
        return chunks[0] if len(chunks) <= 2 else b"".join(chunks)


@contextmanager
def _opened(name: str, most: int | None = None) -> Iterator[int]:
    """A regular file of at most `most` bytes."""
    handle = open_regular(name)
    try:
        if most is not None and os.fstat(handle).st_size > most:
            raise CorruptRecord(f"{name} is larger than anything that detslurm writes there")
        yield handle
    finally:
        close_quietly(handle)


def open_regular(name: str) -> int:
    """A handle to read a regular file by; a link, a pipe or a device raises `CorruptRecord`.

    A link may lead to the reader's own private files, a device has no end, and a pipe keeps its
    reader waiting: in a shared store their maker is another user.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        handle = os.open(name, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptRecord(f"{name} is a link or no regular file: it is not read") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CorruptRecord(f"{name} is no regular file: it is not read")
    except BaseException:
        close_quietly(handle)
        raise
    return handle


def forget_missing(name: str) -> None:
    """Forget that there is no such name: the next lookup asks the file server.

    NFS looks for changes of a folder when that is opened. FUSE forgets a missing name when it is
    about to be made: a link from another file system comes as far as that, and never further.
    """
    folder = os.path.dirname(name)
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except FileNotFoundError:
        if os.path.dirname(folder) != folder:
            forget_missing(folder)
    except OSError:
        pass
    with suppress(OSError):
        os.link(_OTHER_FILE_SYSTEM, name)


def names_anew(name: str) -> list[str]:
    """List the folder of `name`, and let the next lookup of `name` ask the file server."""
    names = names_in(os.path.dirname(name))
    if not names:
        forget_missing(name)
        return names
    with suppress(OSError):
        os.link(_OTHER_FILE_SYSTEM, name)
    return names


def refresh(folder: AnyPath) -> list[str]:
    """Let this node see `folder` as the file server has it now: names, missing names and sizes.

    Returns the names, for callers that need a first guess anyway; none where it can't be listed.

    All kinds of clients drop their caches when they list it. The list is no proof even so; it is
    for small folders, where `forget_missing` would be needed for each name.
    """
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        forget_missing(os.fspath(folder))
    except OSError:
        pass
    return []


def exists(path: AnyPath, *, expected: bool = False) -> bool:
    """Whether there is such a name, as far as this node knows; `expected` as in `read_file`."""
    if _by_name(path, os.stat) is not None:
        return True
    if expected:
        forget_missing(os.fspath(path))
    return expected and _by_name(path, os.stat) is not None


def size_of(path: AnyPath) -> int | None:
    """Bytes in `path` as the file server sees them now, None where there is no such file."""
    return _by_name(path, _size_once)


def _size_once(name: str) -> int:
    with _opened(name) as handle:
        return os.fstat(handle).st_size


def modified(path: AnyPath) -> float | None:
    """When a file was last changed, by the clock of the file server; None where that is unknown.

    Comparable with `time_there` alone, never with this node's clock.
    """
    found = _fresh_stat(path)
    return found.st_mtime if found else None


def owner_of(path: AnyPath, *, follow: bool = True) -> int | None:
    """The id of the user whose file it is, None where there is no such file; without `follow` a
    link is its maker's."""
    found = _by_name(path, os.stat if follow else os.lstat)
    return found.st_uid if found else None


def time_there(folder: AnyPath) -> float | None:
    """The time of the file server of `folder`, by the stamp of a new file; None without a stamp."""
    probe = temporary_name(os.path.join(folder, "clock"))
    try:
        write_new(probe, b"", sync=False)
    except StoreError:
        return None
    try:
        return modified(probe)
    finally:
        discard(probe)


def claim_directory(path: AnyPath, *, secret: bool = False) -> bool:
    """Create the directory `path`; False where another process was faster."""
    try:
        _make_directory(os.fspath(path), secret=secret)
    except FileExistsError:
        return False
    except OSError as error:
        raise explained(error, os.fspath(path)) from error
    return True


def _make_directory(path: str, *, secret: bool = False) -> None:
    mode = access.PRIVATE_DIRECTORY if secret else access.directory_mode(os.path.dirname(path))
    os.mkdir(path, mode & 0o777)
    owner = access.inherited_owner(os.path.dirname(path))
    if mode == access.PRIVATE_DIRECTORY and owner is None:
        return
    # Where root makes it for a user, that user could have put a link in its place.
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                os.fchmod(handle, mode)
            if owner is not None:
                os.fchown(handle, *owner)
        finally:
            os.close(handle)


def ensure_directory(path: AnyPath, *, secret: bool = False) -> None:
    """Let the directory `path` exist, with its parents."""
    name = os.fspath(path)
    try:
        _ensure_directory(name, secret=secret)
    except OSError as error:
        raise explained(error, name) from error


def _ensure_directory(path: str, *, secret: bool = False) -> None:
    try:
        _make_directory(path, secret=secret)
    except FileNotFoundError:
        _ensure_directory(os.path.dirname(path))
        _ensure_directory(path, secret=secret)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def make_parents(path: AnyPath) -> None:
    """Let a directory exist that is none of the store's: what lies above its root."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise explained(error, os.fspath(path)) from error


def share(path: AnyPath) -> None:
    """Let a file that something else made have the mode that it would have from `create`."""
    name = os.fspath(path)
    with suppress(OSError):  # where modes are fixed (vfat, CIFS) it has the mode that all have
        os.chmod(name, access.file_mode(os.path.dirname(name)))


def sync_directory(path: AnyPath) -> bool:
    """Ask that the names in `path` survive a power cut; whether they are known to.

    Never an error: the names are there, and a claim that was won stays won.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.fsync(handle)
    except OSError:
        return False  # some file systems cannot, and need not
    finally:
        close_quietly(handle)
    return True


def close_quietly(handle: int) -> None:
    """Let go of a handle through which nothing was written that matters."""
    with suppress(OSError):
        os.close(handle)


def names_in(path: AnyPath) -> list[str]:
    """A listing, which may be a minute old: a first guess, never a proof."""
    return _by_name(path, os.listdir) or []


def publish_directory(stage: AnyPath, final: AnyPath) -> bool:
    """Give a staged tree its final name, whole at once; False where that name is taken."""
    sync_tree(os.fspath(stage))
    try:
        os.rename(stage, final)
    except OSError as error:
        if _moved(os.fspath(stage), os.fspath(final)):
            pass
        elif error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        else:
            raise explained(error, os.fspath(final)) from error
    sync_directory(os.path.dirname(os.fspath(final)))
    return True


def _moved(stage: str, final: str) -> bool:
    # As with link: a failed rename may have happened, only its reply got lost.
    refresh(os.path.dirname(final))
    return not os.path.lexists(stage) and os.path.isdir(final)


def sync_tree(root: str) -> None:
    """Put every file and directory below `root` on disk."""
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                sync_file(path)
        sync_directory(folder)


def sync_file(path: str) -> None:
    """Put the content of a file on disk; what cannot be opened or synced by nature is skipped."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES, errno.ENXIO):
            raise explained(error, path) from error


@contextmanager
def staged_directory(final: AnyPath) -> Iterator[str]:
    """A directory to fill; it appears as `final` when the block ends well, else it vanishes.

    It is its owner's alone.
    """
    stage = temporary_name(os.fspath(final))
    if not claim_directory(stage, secret=True):
        raise StoreError(f"{stage} exists already")
    try:
        yield stage
        if not publish_directory(stage, final):
            raise StoreError(f"{os.fspath(final)} exists already")
    except BaseException:
        remove_tree(stage)
        raise


def remove_tree(path: AnyPath) -> None:
    """Remove a tree as far as possible; what resists is litter."""
    import shutil  # only here: half a dozen imports that runners and listings never need

    shutil.rmtree(path, ignore_errors=True)
