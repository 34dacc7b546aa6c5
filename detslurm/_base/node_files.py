"""Files that live no longer than a process of this node, on a disk of the node's own.

Their names identify the process that owns them; the next process removes the files of killed ones.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from detslurm._base.process import Identity

PREFIX = f"detslurm-{os.getuid()}-"
# The directory with this user's copies of environments, which live longer.
ENVIRONMENTS = f"{PREFIX}environments"

# Bytes of the longest folder for `make_socket_directory`. A socket's path may have 107: the name of
# the directory takes up to 29 of them, and that of a socket of Jupyter's kernels 50.
_LONGEST_FOLDER = 28

# Kinds of file systems on which all processes of a node see the same bytes at once, and on which
# allocated space can be written although the disk is full. Other kinds may be shared.
_LOCAL = frozenset({"tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "overlay"})


def own_name(label: str) -> str:
    """A name in a directory that many nodes and processes may use."""
    return f"{PREFIX}{_identity(os.getpid())}-{label}"


@cache
def _identity(pid: int) -> Identity:
    return Identity.own()


def create(label: str, size: int) -> tuple[int, Path]:
    """A new file of `size` zero bytes that only this user can open.

    TMPDIR comes before others: there the working directory lies, which a container has to see.
    Raises `OSError` when there is no room anywhere.
    """
    problem: OSError | None = None
    for folder in _places():
        try:
            return create_at(folder / own_name(label), size)
        except OSError as err:
            problem = err
    raise problem or OSError("there is no directory for temporary files")


def create_at(start: Path, size: int) -> tuple[int, Path]:
    """The same with a path that begins with `start`."""
    path = start.with_name(f"{start.name}-{os.urandom(4).hex()}")
    return _allocated(path, size), path


@cache
def sweep(folder: Path) -> bool:
    """Remove what killed processes of this node have left, once, if the names can be read.

    Returns whether copies of environments are there.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208 (agents start with few calls)
    except OSError:
        return False
    for name in names:
        owner = Identity.parse(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else None
        if owner not in (None, _identity(os.getpid())) and owner.is_dead():
            for path in _with_target(folder / name):
                remove(path)
    return ENVIRONMENTS in names


def _with_target(path: Path) -> Iterator[Path]:
    """A path, behind the directory for sockets that it links to."""
    try:
        target, owner = os.readlink(path), path.lstat().st_uid  # noqa: PTH115
    except OSError:
        target, owner = "", -1  # no link
    # Others may make links in a common directory: a link of ours leads to its neighbour.
    if owner == os.getuid() and target.startswith(PREFIX) and "/" not in target:
        yield path.with_name(target)
    yield path


def make_socket_directory() -> Path:
    """Make a directory for Unix sockets that only this user can enter; it is gone when this
    process ends.

    Its path is short, because a socket's path has 107 bytes at most. So its name can't identify
    this process. A link beside it does, and `sweep` follows it after this process was killed.
    It lies where a job's container shows the node's files, if there is a container.

    Raises `OSError` if no directory for temporary files is short enough and can be written.
    """
    problem: OSError | None = None
    for folder in _places():
        try:
            if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
                return _make_socket_directory(folder)
        except OSError as error:
            problem = error
    raise problem or OSError("there is no directory for temporary files with a short path")


def _make_socket_directory(folder: Path) -> Path:
    import shutil
    import tempfile

    sweep(folder)
    path, link = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder)), folder / own_name("sockets")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    atexit.register(remove, link)
    link.symlink_to(path.name)
    return path


def make_directory(label: str) -> Path:
    """Make a directory among the temporary files that is gone when this process ends.

    Leftovers of this node's killed processes are removed first.
    """
    import shutil
    import tempfile

    folder = tempfile.gettempdir()
    sweep(Path(folder))
    path = Path(tempfile.mkdtemp(prefix=own_name(f"{label}-"), dir=folder))
    # At its very end: writers of the user's code append until then.
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def temporary_directory() -> str:
    """The result of `tempfile.gettempdir()`."""
    if "tempfile" not in sys.modules:
        given = (os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
        first = os.path.abspath(next(filter(None, given), "/tmp"))  # noqa: PTH100 (as tempfile)
        if _is_writable(first):
            return first
    import tempfile

    return tempfile.gettempdir()


def is_noexec(folder: str | Path) -> bool:
    """Whether no program, and no compiled module, can be started from there."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
    except OSError:
        return False  # unknown


def directory_for_programs() -> str:
    """The directory for temporary files, or another one if programs can't be started there."""
    first = temporary_directory()
    if not is_noexec(first):
        return first
    others = (place for place in ("/tmp", "/var/tmp") if not is_noexec(place))
    return next(filter(_is_writable, others), first)


@cache
def _is_writable(folder: str) -> bool:
    try:
        fd, path = create_at(Path(folder, own_name("try")), 1)
    except OSError:
        return False
    os.close(fd)
    path.unlink()
    return True


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        import shutil  # only here, as below: agents start without a dozen modules

        shutil.rmtree(path, ignore_errors=True)


def _allocated(path: Path, size: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)  # whatever the umask
        if size:
            os.posix_fallocate(fd, 0, size)
    except OSError:
        os.close(fd)
        path.unlink()
        raise
    return fd


def _places() -> Iterator[Path]:
    """Directories for temporary files, those on disks of the node's own first."""
    named = dict.fromkeys((temporary_directory(), "/tmp", "/dev/shm", "/var/tmp"))
    kinds, others = _kinds(), []
    for place in map(Path, named):
        if kinds.get(_device(place)) in _LOCAL:
            yield place
        else:
            others.append(place)
    yield from others


def local_kind(place: Path) -> str | None:
    """The kind of file system that holds a path, or will, where no other machine sees it."""
    while not place.exists() and place != place.parent:
        place = place.parent
    kind = mounted_kind(place)
    return kind if kind in _LOCAL else None


def mounted_kind(place: Path) -> str | None:
    """The kind of file system that a directory is on, such as `ext4`; None if unknown."""
    return _kinds().get(_device(place))


def _device(place: Path) -> str | None:
    try:
        device = place.stat().st_dev
    except OSError:
        return None
    return f"{os.major(device)}:{os.minor(device)}"


def _kinds() -> dict[str | None, str]:
    """The kind of each mounted file system, by the number of its device."""
    try:
        with open("/proc/self/mountinfo", "rb", buffering=0) as file:  # noqa: PTH123
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return {}
    # "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
    return {line.split()[2]: line.partition(" - ")[2].split()[0] for line in lines}
