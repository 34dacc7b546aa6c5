"""The processes of a job, seen from outside, on all nodes of the suite's cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.waiting import wait_for
from tests.e2e.desk import Desk


def is_alive(pid: int) -> bool:
    """Whether a process is there and no mere zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def find_process(words: str) -> int:
    """The one process whose command line has these words."""
    return wait_for(lambda: find_processes(words), 30, f"a process {words!r}")[0]


def find_processes(words: str) -> list[int]:
    """All processes whose command line has these words."""
    return [pid for pid, line in _all("cmdline") if words.encode() in line.replace(b"\0", b" ")]


def find_program(pattern: str) -> int:
    """The oldest process whose whole command line matches."""
    whole = re.compile(pattern.encode())

    def search() -> list[int]:
        return [pid for pid, line in _all("cmdline") if whole.match(line.replace(b"\0", b" "))]

    return min(wait_for(search, 30, f"a process {pattern!r}"))


def processes_of(desk: Desk, number: int) -> set[int]:
    """Every living process that an experiment's jobs have started, whatever became of it."""
    path = f"{desk.experiment(number).path}\0".encode()
    return {
        pid for what in ("cmdline", "environ") for pid, text in _all(what) if path in text + b"\0"
    }


def kill_runner(desk: Desk, number: int) -> None:
    """kill -9 of the runner; all processes of its job must be gone within 30 seconds."""
    os.kill(find_process(f"detslurm.exec.runner {desk.experiment(number).path} "), signal.SIGKILL)
    wait_for(lambda: not processes_of(desk, number), 30, "no process of the job's to remain")


def _all(what: str) -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / what).read_bytes()
            except OSError:
                continue
