"""Staging: a node's own copy of the environment that was packed at the submission.

Once per node: the first agent unpacks it, under the lock of a directory that is its user's alone,
while the others wait; the kernel releases the lock of an agent that is killed. A copy gets its name
when it is complete, and all that use it lock it: an unused copy is removed when the next other
environment comes, when an experiment needs its copy no more, or a day after its last use. A copy in
which any file has changed since it was made is not used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm import __version__
from detslurm._base import access
from detslurm._base.node_files import ENVIRONMENTS, is_noexec, mounted_kind, temporary_directory
from detslurm._base.quantities import human_size
from detslurm.slurm import Allocation
from detslurm.store.records import MANIFEST

# Kinds of file systems that belong to one node; of others it is not known.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"})
_IN_MEMORY = "tmpfs"
# The part of a disk's free space that an environment may take, and of the memory of the job, which
# needs the most of it.
_OF_DISK, _OF_MEMORY = 8 / 9, 1 / 4
_SPARE = 64 << 20
_LOOK = 0.05  # seconds
# Nodes that have arrived wait 600 s for the last node.
_TIMEOUT = 400.0
_CHECK_TIMEOUT = 60.0
_LEAVING = 20.0
_KEPT_UNUSED = 86400.0
# Programs of `bin` are started by their first lines, shells read what follows in others, and a
# colon would end a directory in PATH.
_PLAIN = re.compile(r"[\w./+@%=,-]+", re.ASCII)
# Older kernels read no more of a first line.
_FIRST_LINE = 126
# Others than root may seem to own a directory where a namespace does not show whose it is.
_TRUSTED = access.UNKNOWN_OWNERS | {os.geteuid()}
# Those in which a shell, Python or the loader of libraries look for what an environment has.
_PLACES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_STATE = ".detslurm-state"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CGROUP, _LIMITS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_STOPPED = "the run was asked to stop"


class NotStaged(Exception):
    """Why a run uses the environment where it is."""


@dataclass(frozen=True)
class StagedEnvironment:
    """A copy in use: it is not removed while `lock` is open."""

    path: str
    prefixes: tuple[str, ...]
    lock: int


def stage(
    environment: Mapping[str, Any],
    *,
    wait: Callable[[float], object],
    stopped: Callable[[], bool],
) -> StagedEnvironment:
    """This node's copy of an environment (`records.Environment`), made now if need be.

    `wait` passes some seconds; `stopped` returns whether the run needs no copy any more. Raises
    `NotStaged` with the reason, whatever goes wrong.
    """
    deadline = time.monotonic() + _TIMEOUT

    def pause() -> None:
        if stopped():
            raise NotStaged(_STOPPED)
        if time.monotonic() >= deadline:
            raise NotStaged(f"it is not there after {_TIMEOUT:.0f} s")
        wait(_LOOK)

    if environment.get("detslurm") not in (None, __version__):
        raise NotStaged("detslurm was upgraded since the submission")
    try:
        return _stage(environment, pause)
    except NotStaged:
        raise
    except OSError as err:
        where = err.filename or "the disk of this node"
        raise NotStaged(f"{where}: {err.strerror or err}") from err
    except Exception as err:
        raise NotStaged(f"{type(err).__name__}: {err}") from err


def _stage(environment: Mapping[str, Any], pause: Callable[[], None]) -> StagedEnvironment:
    home, name = _home(), Path(environment["archive"]).stem
    if (found := _take(home / name)) is not None:
        return found
    try:
        lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # the last job here has just removed it
        return _stage(environment, pause)
    try:
        while not _locked(lock, fcntl.LOCK_EX):
            pause()
        if not _is_same(home, lock):  # likewise
            return _stage(environment, pause)
        if (found := _take(home / name)) is not None:
            return found
        _remove_unused(home)
        if (home / name).exists():
            raise NotStaged("another job has changed its copy on this node, and uses it")
        _refuse_without_room(home, environment["size"])
        _unpack(home / name, environment, pause)
        if (found := _take(home / name)) is None:
            raise NotStaged(f"{home / name} was changed as soon as it was there")
        return found
    finally:
        os.close(lock)


# -- where -------------------------------------------------------------------------------------


def _place() -> Path:
    """The directory for temporary files: the job's own, else the system's."""
    return Path(os.environ.get("SLURM_TMPDIR") or temporary_directory()).resolve()


def _home() -> Path:
    """Where this user's environments are in it."""
    place = _place()
    kind = mounted_kind(place)
    if kind not in _LOCAL:
        raise NotStaged(f"{place} may be shared with other nodes ({kind or 'unknown'})")
    if not _PLAIN.fullmatch(str(place)):
        raise NotStaged(f"programs can't be started in {str(place)!r}, for its special characters")
    if is_noexec(place):
        raise NotStaged(f"programs can't be started in {place}, which is mounted noexec")
    home = place / ENVIRONMENTS
    home.mkdir(mode=0o700, exist_ok=True)
    _refuse_what_others_change(home)
    return home


def _refuse_what_others_change(home: Path) -> None:
    """Anybody may have made it in a directory that all can write, or might exchange it."""
    status = home.lstat()
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not own or status.st_mode & 0o022:
        raise NotStaged(f"{home} is not this user's alone")
    for folder in home.parents:
        status = folder.stat()
        # Where the sticky bit is set, names can only be changed by the owners.
        open_to_all = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if open_to_all or status.st_uid not in _TRUSTED:
            raise NotStaged(f"other users may exchange the files in {folder}")


def _refuse_without_room(home: Path, size: int) -> None:
    disk = os.statvfs(home)
    free = disk.f_bavail * disk.f_frsize
    room = free * _OF_DISK
    if mounted_kind(home) == _IN_MEMORY:
        free = min(free, _limit_of_memory(free))
        room = free * _OF_MEMORY
    if room < size + _SPARE:
        raise NotStaged(
            f"{home.parent} has {human_size(free)} free, and it takes {human_size(size)}"
        )


def _limit_of_memory(most: int) -> int:
    """The strictest limit of this process's cgroups: what lies in a tmpfs counts as the job's."""
    for line in _CGROUP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        kind, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        folder = _LIMITS / kind / path.lstrip("/")
        for place in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # it has no limit, or is not shown here
                most = min(most, int((place / name).read_text()))
    return most


# -- a copy --------------------------------------------------------------------------------------


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take(copy: Path) -> StagedEnvironment | None:
    """A copy that is complete and unchanged, kept for as long as it is used."""
    try:
        lock = os.open(copy, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if _is_whole(copy, lock):
            prefixes = json.loads((copy / MANIFEST).read_bytes())["prefixes"]
            os.utime(lock)  # its last use
            return StagedEnvironment(str(copy), tuple(prefixes), lock)
    except BaseException as err:
        os.close(lock)
        if not isinstance(err, Exception):
            raise
        return None  # whatever is wrong there, it is no copy
    os.close(lock)
    return None


def _is_whole(copy: Path, lock: int) -> bool:
    """Whether all of it is as it was made, and remains there while it is locked."""
    is_kept = _locked(lock, fcntl.LOCK_SH) and _is_same(copy, lock)
    return is_kept and (copy / _STATE).read_text() == _state(copy)


def _is_same(copy: Path, lock: int) -> bool:
    """Whether the locked file still has that name: another process may have removed it."""
    try:
        return os.path.samestat(copy.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _state(copy: Path) -> str:
    """How every file looks from outside, but those that Python makes by itself.

    A hook may have installed something, or a cleaner of /tmp have taken files. Files from before
    the node's last start may not have reached the disk.
    """
    found = hashlib.sha256(_BOOT.read_bytes())
    folders = [str(copy)]
    while folders:
        with os.scandir(folders.pop()) as names:
            entries = sorted(names, key=lambda entry: entry.name)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    folders.append(entry.path)
            elif entry.name != _STATE:
                status = entry.stat(follow_symlinks=False)
                name = entry.path[len(str(copy)) :]
                seen = (name, status.st_mode, status.st_size, status.st_mtime_ns)
                found.update(repr(seen).encode())
    return found.hexdigest()


def _remove_unused(home: Path, since: float = math.inf) -> None:
    """Remove copies unused since then, and leftovers of killed agents. The home is locked."""
    for path in list(home.iterdir()):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_mtime < since and _locked(lock, fcntl.LOCK_EX):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _unpack(copy: Path, environment: Mapping[str, Any], pause: Callable[[], None]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
    try:
        _untar(environment, partial, pause)
        manifest = json.loads((partial / MANIFEST).read_bytes())
        for name in manifest["scripts"]:
            _point(partial / name, manifest["prefixes"], copy)
        _check(partial)
        (partial / _STATE).write_text(_state(partial))
        partial.rename(copy)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _untar(environment: Mapping[str, Any], target: Path, pause: Callable[[], None]) -> None:
    archive = environment["archive"]
    with open(archive, "rb", buffering=0) as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise NotStaged(f"{archive} may have been written by another user")
        if status.st_size != environment["size"]:
            raise NotStaged(f"{archive} has changed since the submission")
        # GNU tar takes a quarter of the time of Python's tarfile. 1 MiB at a time.
        argv = ["tar", "-x", "-b", "2048", "--no-same-owner", "-C", str(target), "-f", "-"]
        null = subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=file, stdout=null, stderr=null) as child:
            try:
                while child.poll() is None:
                    pause()
            finally:
                child.kill()
    if child.returncode:
        _refuse_without_room(target, 0)
        raise NotStaged(f"tar ended with status {child.returncode}")


def _point(script: Path, prefixes: list[str], copy: Path) -> None:
    """Let a script of `bin` start this copy's Python."""
    data = script.read_bytes()
    for prefix in prefixes:
        data = re.sub(rb"%b(?![\w.-])" % re.escape(os.fsencode(prefix)), os.fsencode(copy), data)
    line = data.partition(b"\n")[0]
    if len(line) > _FIRST_LINE and line.startswith(b"#!") and os.fsencode(copy) in line:
        raise NotStaged(f"{copy} is too long for the first line of {script.name}")
    script.write_bytes(data)


def _check(copy: Path) -> None:
    """Ask the copy's Python where it is. Raises `NotStaged` unless it is the copy's own."""
    python = copy / "bin" / "python"
    if not os.path.lexists(python):
        python = copy / "bin" / "python3"
    argv = [str(python), "-I", "-c", "import sys; print(sys.prefix)"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CHECK_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise NotStaged(f"its Python takes more than {_CHECK_TIMEOUT:.0f} s to start") from err
    if done.stdout.splitlines()[-1:] != [str(copy)]:
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise NotStaged(f"its Python does not run from another place: {said}")


# -- its use -------------------------------------------------------------------------------------


def relocated(env: Mapping[str, str], staged: StagedEnvironment) -> dict[str, str]:
    """An environment in which commands and libraries are found in the copy."""
    found = dict(env)
    for name in _PLACES:
        if name in env:
            parts = (_moved(part, staged) for part in env[name].split(os.pathsep))
            found[name] = os.pathsep.join(parts)
    return found


def _moved(path: str, staged: StagedEnvironment) -> str:
    for prefix in staged.prefixes:
        if path == prefix or path.startswith(f"{prefix}/"):
            moved = staged.path + path[len(prefix) :]
            return moved if Path(moved).exists() else path
    return path


def leave_nodes(allocation: Allocation) -> None:
    """Remove unused copies from the nodes of a job."""
    argv = [sys.executable, "-P", "-m", "detslurm.exec.staging"]
    if allocation.node_count > 1:
        argv = allocation.step_command(argv)
    with suppress(OSError, subprocess.TimeoutExpired):
        null = subprocess.DEVNULL
        subprocess.run(argv, stdin=null, stderr=null, timeout=_LEAVING, check=False)


def remove_unused(place: Path, since: float = math.inf) -> None:
    """Remove the copies in `place` that were not used since then, and are not in use."""
    home = place / ENVIRONMENTS
    with suppress(OSError, NotStaged):  # there is none, or some are in use
        _refuse_what_others_change(home)
        lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if _locked(lock, fcntl.LOCK_EX):
                _remove_unused(home, since)
                home.rmdir()
        finally:
            os.close(lock)


def remove_forgotten(place: Path) -> None:
    """Remove the copies in `place` that were last used more than a day ago."""
    remove_unused(place.resolve(), time.time() - _KEPT_UNUSED)


def main(argv: list[str]) -> int:
    """Remove the unused copies of this user's environments on this node."""
    remove_unused(_place())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
