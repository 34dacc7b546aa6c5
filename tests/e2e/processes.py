"""The processes of a job, seen from outside, on all nodes of the suite's cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.processes import birth
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk


def find_process(words: str) -> int:
    """The oldest process whose command line has these words."""
    return _oldest(wait_for(lambda: find_processes(words), PATIENCE, f"a process {words!r}"))


def find_processes(words: str) -> list[int]:
    """All processes whose command line has these words."""
    return [pid for pid, line in _all("cmdline") if words.encode() in line.replace(b"\0", b" ")]


def find_program(desk: Desk, pattern: str) -> int:
    """The oldest process of this user's jobs whose whole command line matches."""
    whole, store = re.compile(pattern.encode()), f"={desk.store.path}\0".encode()

    def search() -> list[int]:
        ours = {pid for pid, text in _all("environ") if store in text}
        lines = ((pid, line) for pid, line in _all("cmdline") if pid in ours)
        return [pid for pid, line in lines if whole.match(line.replace(b"\0", b" "))]

    return _oldest(wait_for(search, PATIENCE, f"a process {pattern!r}"))


def _oldest(pids: list[int]) -> int:
    """A child has its parent's command line until it runs its own program; pids wrap around."""
    return min(pids, key=lambda pid: (float(birth(pid) or "inf"), pid))


def processes_of(desk: Desk, number: int) -> set[int]:
    """Every living process that an experiment's jobs have started, whatever became of it."""
    path = f"{desk.experiment(number).path}\0".encode()
    return {
        pid for what in ("cmdline", "environ") for pid, text in _all(what) if path in text + b"\0"
    }


def kill_runner(desk: Desk, number: int) -> None:
    """kill -9 of the runner; all processes of its job must be gone soon."""
    os.kill(find_process(f"detslurm.exec.runner {desk.experiment(number).path} "), signal.SIGKILL)
    wait_for(lambda: not processes_of(desk, number), PATIENCE, "no process of the job's to remain")


def _all(what: str) -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / what).read_bytes()
            except OSError:
                continue
