"""Staging: a node's own copy of the environment that was packed at the submission.

Once per node: whoever comes first unpacks it, under the lock of a directory that is its user's
alone, while the others wait; the kernel releases the lock of an agent that is killed. A copy gets
its name when it is complete, and is locked by all that use it: what nobody uses is removed when the
next other environment comes, or when an experiment needs its copy no more.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detslurm import __version__
from detslurm._node_files import mounted_kind
from detslurm._quantities import human_size
from detslurm.slurm import Allocation
from detslurm.store.records import MANIFEST

_HOME = f"detslurm-{os.geteuid()}-environments"
# Kinds of file systems that belong to one node; of others it is not known.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"})
_IN_MEMORY = "tmpfs"
# Which part of the memory that a job may use its environment may take, where disks are memory.
_OF_MEMORY = 4
_SPARE = 64 << 20
_LOOK = 0.05  # seconds
_CHECK_TIMEOUT = 60.0
_LEAVING = 20.0
# Those in which a shell, Python or the loader of libraries look for what an environment has.
_PLACES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_NAMES = ".detslurm-packages"
_STOPPED = "the run was asked to stop"


class NotStaged(Exception):
    """Why a run uses the environment where it is."""


@dataclass(frozen=True)
class StagedEnvironment:
    """A copy in use: nobody removes it while `lock` is open."""

    path: str
    prefixes: tuple[str, ...]
    lock: int

    def leave(self) -> None:
        """Use it no longer."""
        os.close(self.lock)


def stage(
    environment: Mapping[str, Any],
    *,
    wait: Callable[[float], object],
    stopped: Callable[[], bool],
) -> StagedEnvironment:
    """This node's copy of an environment (`records.Environment`), made now if need be.

    `wait` passes some seconds; `stopped` says that the run has no use for it any more. Raises
    `NotStaged` with the reason.
    """
    if environment.get("detslurm") not in (None, __version__):
        raise NotStaged("detslurm was upgraded since the submission")
    try:
        return _stage(environment, wait, stopped)
    except OSError as err:
        raise NotStaged(f"{err.filename or 'the disk of this node'}: {err.strerror}") from err


def _stage(
    environment: Mapping[str, Any], wait: Callable[[float], object], stopped: Callable[[], bool]
) -> StagedEnvironment:
    home, name = _home(), Path(environment["archive"]).stem
    if (found := _take(home / name)) is not None:
        return found
    lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        while not _locked(lock, fcntl.LOCK_EX):
            if stopped():
                raise NotStaged(_STOPPED)
            wait(_LOOK)
        if not _is_same(home, lock):  # the last job here has just removed it
            return _stage(environment, wait, stopped)
        if (found := _take(home / name)) is not None:
            return found
        _remove_unused(home)
        if (home / name).exists():
            raise NotStaged("another job has changed its copy on this node, and uses it")
        _refuse_without_room(home, environment["size"])
        _unpack(home / name, environment, wait, stopped)
        found = _take(home / name)
        assert found is not None  # under the lock
        return found
    finally:
        os.close(lock)


# -- where -------------------------------------------------------------------------------------


def _place() -> Path:
    """The directory for temporary files: the job's own where there is one."""
    return Path(os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())


def _home() -> Path:
    """Where this user's environments are in it."""
    place = _place()
    kind = mounted_kind(place)
    if kind not in _LOCAL:
        raise NotStaged(f"{place} may be shared with other nodes ({kind or 'unknown'})")
    home = place / _HOME
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    # Anybody may have made something of that name in a directory that all can write.
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not own or status.st_mode & 0o022:
        raise NotStaged(f"{home} is not this user's alone")
    return home


def _refuse_without_room(home: Path, size: int) -> None:
    disk = os.statvfs(home)
    free = disk.f_bavail * disk.f_frsize
    if free < size + size // 8 + _SPARE:
        raise NotStaged(
            f"{home.parent} has {human_size(free)} free, and it takes {human_size(size)}"
        )
    if mounted_kind(home) == _IN_MEMORY and size * _OF_MEMORY > (memory := _memory()):
        raise NotStaged(
            f"{home.parent} is memory, and {human_size(size)} is much of the"
            f" {human_size(memory)} that the job may use"
        )


def _memory() -> int:
    """Bytes that this job may still use on its node."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next((int(ln.split()[1]) << 10 for ln in lines if ln.startswith("MemAvailable:")), 0)
    given = os.environ.get("SLURM_MEM_PER_NODE", "")  # in MiB; 0 is all
    return min(free, int(given) << 20) if given.isdigit() and int(given) else free


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
    except FileNotFoundError:
        return None
    try:
        if _locked(lock, fcntl.LOCK_SH) and _is_same(copy, lock):
            manifest = json.loads((copy / MANIFEST).read_bytes())
            if (copy / _NAMES).read_text() == _package_names(copy, manifest):
                return StagedEnvironment(str(copy), tuple(manifest["prefixes"]), lock)
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_same(copy: Path, lock: int) -> bool:
    """Whether what was locked still has that name: somebody may have removed it meanwhile."""
    try:
        return os.path.samestat(copy.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _package_names(copy: Path, manifest: Mapping[str, Any]) -> str:
    """What an installer changes, as `pip install` in a startup hook does."""
    names = (name for folder in manifest["packages"] for name in os.listdir(copy / folder))  # noqa: PTH208
    return json.dumps(sorted(name for name in names if name != "__pycache__"))


def _remove_unused(home: Path) -> None:
    """Remove what nobody uses, and what killed agents have left. The home is locked."""
    for path in list(home.iterdir()):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if _locked(lock, fcntl.LOCK_EX):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _unpack(
    copy: Path,
    environment: Mapping[str, Any],
    wait: Callable[[float], object],
    stopped: Callable[[], bool],
) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
    try:
        _untar(environment, partial, wait, stopped)
        manifest = json.loads((partial / MANIFEST).read_bytes())
        for name in manifest["scripts"]:
            _point(partial / name, manifest["prefixes"], copy)
        _check(partial)
        (partial / _NAMES).write_text(_package_names(partial, manifest))
        partial.rename(copy)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _untar(
    environment: Mapping[str, Any],
    target: Path,
    wait: Callable[[float], object],
    stopped: Callable[[], bool],
) -> None:
    archive = environment["archive"]
    with open(archive, "rb", buffering=0) as file:  # noqa: PTH123
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise NotStaged(f"{archive} may have been written by somebody else")
        if status.st_size != environment["size"]:
            raise NotStaged(f"{archive} has changed since the submission")
        # GNU tar takes a quarter of the time of Python's tarfile. 1 MiB at a time.
        argv = ["tar", "-x", "-b", "2048", "--no-same-owner", "-C", str(target), "-f", "-"]
        null = subprocess.DEVNULL
        with subprocess.Popen(argv, stdin=file, stdout=null, stderr=null) as child:
            try:
                while child.poll() is None:
                    if stopped():
                        raise NotStaged(_STOPPED)
                    wait(_LOOK)
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
    script.write_bytes(data)


def _check(copy: Path) -> None:
    """Ask the copy's Python where it is. Raises `NotStaged` unless it is the copy's own."""
    python = copy / "bin" / "python"
    if not os.path.lexists(python):
        python = copy / "bin" / "python3"
    argv = [str(python), "-I", "-c", "import sys; print(sys.prefix)"]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_CHECK_TIMEOUT,
        check=False,
    )
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


def with_commands_of(env: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The same variables with the commands of the one that was asked for in PATH."""
    path, own = env.get("PATH", os.defpath), f"{prefix}/bin"
    if own in path.split(os.pathsep):
        return dict(env)
    return {**env, "PATH": f"{own}{os.pathsep}{path}"}


def leave_nodes(allocation: Allocation) -> None:
    """Remove from the nodes of a job what nobody uses there any more."""
    argv = [sys.executable, "-P", "-m", "detslurm.exec.staging"]
    if allocation.node_count > 1:
        argv = allocation.step_command(argv)
    with suppress(OSError, subprocess.TimeoutExpired):
        null = subprocess.DEVNULL
        subprocess.run(argv, stdin=null, stderr=null, timeout=_LEAVING, check=False)


def main(argv: list[str]) -> int:
    """Remove the copies of this user's environments on this node that nobody uses."""
    home = _place() / _HOME
    with suppress(OSError):  # there is none, or some are in use
        lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(lock).st_uid == os.geteuid() and _locked(lock, fcntl.LOCK_EX):
                _remove_unused(home)
                home.rmdir()
        finally:
            os.close(lock)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
