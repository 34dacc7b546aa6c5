"""Waits until the machine has done what the row before has left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

QUIET = 0.1
"""Of one core: an idle slurmctld and four slurmd need less."""

PATIENCE, WINDOW = 20.0, 0.5
IDLE = (3, 4)
"""Columns of /proc/stat: idle, and idle while something is written."""


def busy_cores(seconds: float = WINDOW, stat: Path = Path("/proc/stat")) -> float:
    """How many cores were busy over so long, a virtual machine's neighbours counted.

    The load average won't do: it forgets a row only after a minute.
    """
    before = _ticks(stat)
    time.sleep(seconds)
    spent = [after - earlier for earlier, after in zip(before, _ticks(stat), strict=True)]
    total = sum(spent)
    idle = sum(spent[column] for column in IDLE)
    return (total - idle) / total * (os.cpu_count() or 1) if total else 0.0


def _ticks(stat: Path) -> list[int]:
    # The guest's time, in columns 8 and 9, is in the user's already.
    return [int(word) for word in stat.read_text().splitlines()[0].split()[1:9]]


def wait_until_quiet(patience: float = PATIENCE, busy: Callable[[], float] = busy_cores) -> float:
    """Return the busy cores once they are few, or when the patience (in seconds) has ended.

    What was written is on disk first, else the next row would wait for it in its own fsync.
    """
    os.sync()
    until = time.monotonic() + patience
    while (now := busy()) > QUIET and time.monotonic() < until:
        pass
    return now
