"""Whether the sessions of a shell are in use: by their terminals, connections and processes.

A terminal is in use while something is typed or printed, a connection while more passes than the
sign that it lives, and a process while it computes. A value that can't be read counts as use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from detslurm.exec.run_processes import RunProcesses

_CPU_SHARE: Final = 0.1
"""The share of one CPU from which on processes are at work; an editor's server takes less."""

_BYTES_PER_SECOND: Final = 70
"""More than the signs of life of `ssh` and of editors, less than a person at work causes."""

_TTY: Final = 4  # the field of /proc/PID/stat behind the name
_PTS_MAJOR: Final = 136


class Sample(NamedTuple):
    """The sessions at one moment by the monotonic clock: the CPU seconds of all processes so far,
    when a terminal was last used, and the bytes that have passed each connection so far."""

    time: float
    cpu: float
    terminal: float
    passed: Mapping[int, int | None]


def in_use(before: Sample, now: Sample) -> bool:
    """Return whether sessions were in use between two samples."""
    seconds = now.time - before.time
    if now.terminal > before.terminal or now.cpu - before.cpu > _CPU_SHARE * seconds:
        return True
    counts = [(count, before.passed.get(number)) for number, count in now.passed.items()]
    if any(count is None for count, _ in counts):
        return True
    new = sum(count - (earlier or 0) for count, earlier in counts if count is not None)
    return new > _BYTES_PER_SECOND * seconds


def take_sample(processes: RunProcesses, passed: Mapping[int, int | None]) -> Sample | None:
    """Look at all sessions; None where /proc can't be read."""
    try:
        used = processes.used()
    except OSError:
        return None
    terminal = last_input_or_output(terminals(used.pids))
    return Sample(time.monotonic(), used.seconds, terminal, passed)


def last_input_or_output(paths: Iterable[str]) -> float:
    """Return when any of these terminals was last read or written; 0 without terminals."""
    latest = 0.0
    for path in paths:
        with suppress(OSError):  # it has been closed
            status = os.stat(path)  # noqa: PTH116
            latest = max(latest, status.st_atime, status.st_mtime)
    return latest


def terminals(pids: Iterable[int]) -> set[str]:
    """The pseudo-terminals of these processes."""
    found = set()
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            device = int(stat[stat.rindex(b")") + 2 :].split()[_TTY])
            if os.major(device) == _PTS_MAJOR:
                found.add(f"/dev/pts/{os.minor(device)}")
    return found


def write_line(paths: Iterable[str], text: str) -> None:
    """Write a line to terminals, as `wall` does."""
    for path in paths:
        with suppress(OSError):
            handle = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                os.write(handle, f"\r\n{text}\r\n".encode())
            finally:
                os.close(handle)
