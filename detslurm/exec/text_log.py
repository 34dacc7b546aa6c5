"""Messages for people: the text log of a run, which has one writer, and the job's own output."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from detslurm._quantities import counted
from detslurm.store import fs
from detslurm.store.errors import StoreError, explained


def print_message(text: str) -> None:
    """Print a line in the job's output; on a full disk that line alone is lost."""
    with contextlib.suppress(OSError):
        os.write(1, f"detslurm: {text}\n".encode("utf-8", "replace"))


def log_store_error(error: StoreError) -> None:
    """Print that the store fails now: what needs it is tried again."""
    print_message(f"the store can't be used now: {error}")


class TextLog:
    """Appends stamped lines; a full file system never stops the run, it only costs lines."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = fs.create(str(path), os.O_WRONLY | os.O_APPEND)
        except OSError as err:
            raise explained(err, str(path)) from err
        self._lost = 0

    def write(self, lines: Iterable[str]) -> None:
        """Append lines, each as `[time] line`."""
        stamp = _now()
        out = [f"[{stamp}] {_separated(line)}\n" for line in lines]
        if self._lost:
            out.insert(0, f"[{stamp}] || detslurm: {counted(self._lost, 'line')} lost: no space\n")
        data = "".join(out).encode("utf-8", "replace")
        try:
            fs.write_all(self._fd, data)
        except OSError:
            self._lost += len(out)
            return
        self._lost = 0

    def add_message(self, text: str) -> None:
        """A line of detslurm's own."""
        self.write([f"detslurm: {text}"])

    def close(self) -> None:
        fs.close_quietly(self._fd)


def _separated(line: str) -> str:
    # `[rank=0] text` -> `[rank=0] || text`, the form that Determined's users know.
    if line.startswith("[rank=") and "] " in line:
        head, text = line.split("] ", 1)
        return f"{head}] || {text}"
    return f"|| {line}"


def _now() -> str:
    now = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    return f"{whole}.{int(now % 1 * 1e6):06d}Z"
