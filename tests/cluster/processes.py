"""Processes as /proc shows them: who is alive, whose child, and whose job; and their ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def pids() -> Iterator[int]:
    """Every process that this user can see."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """State, parent, ... : the fields of /proc/PID/stat after the command's name."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    """Whether `pid` runs; a zombie that nobody has reaped yet is dead."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def birth(pid: int) -> str | None:
    """When `pid` was started, in clock ticks since boot: tells a reused pid from the old one."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else None


def environment(pid: int) -> dict[str, str]:
    """The environment that `pid` was started with ({} where it can't be read)."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def command(pid: int) -> list[str]:
    """The command line of `pid`, [] where it can't be read."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in raw.split(b"\0")[:-1]]


def executable(pid: int) -> str:
    """The base name of the program that `pid` runs, "" where it can't be read."""
    try:
        return (PROC / str(pid) / "exe").readlink().name
    except OSError:
        return ""


def has_open(pid: int, path: Path) -> bool:
    """Whether `pid` has the file `path` open."""
    try:
        links = [fd.readlink() for fd in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    return path in links


def descendants(roots: Iterable[int]) -> set[int]:
    """All children of `roots`, their children and so on, without the roots."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        fresh = [pid for pid in children.get(queue.pop(), ()) if pid not in found]
        found.update(fresh)
        queue.extend(fresh)
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Signal `pid`; one that has gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def read_pid(path: Path) -> int | None:
    """The process named by a pid file, None unless it is there and alive."""
    try:
        pid = int(path.read_text().strip())
    except (OSError, ValueError):
        return None
    return pid if alive(pid) else None


@contextlib.contextmanager
def started(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process, as Popen starts it, that is killed in the end, also by a test that fails."""
    with subprocess.Popen(argv, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def killing(*targets: int) -> Iterator[None]:
    """What should end by itself in here is killed in the end, also by a test that fails."""
    births = {pid: birth(pid) for pid in targets}
    try:
        yield
    finally:
        for pid, born in births.items():
            if born is not None and birth(pid) == born:  # else the pid may be somebody else's
                send(pid, signal.SIGKILL)


def treats(pid: int, what: str, number: signal.Signals) -> bool:
    """Whether a process ignores (SigIgn) or handles (SigCgt) a signal."""
    status = (PROC / str(pid) / "status").read_text()
    numbers = int(status.partition(f"{what}:")[2].split()[0], 16)
    return bool(numbers >> (number - 1) & 1)
