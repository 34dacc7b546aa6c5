"""Messages for people: the text log of a run, which has one writer, and the job's own output."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from detslurm._base.quantities import counted
from detslurm.store import fs
from detslurm.store.errors import explained
from detslurm.store.retry import LONG, with_retries

P = ParamSpec("P")
T = TypeVar("T")


def print_message(text: str) -> None:
    """Print a line in the job's output; on a full disk that line alone is lost."""
    with contextlib.suppress(OSError):
        os.write(1, f"detslurm: {text}\n".encode("utf-8", "replace"))


def log_store_error(error: Exception) -> None:
    """Print that the store fails now: what needs it is tried again."""
    print_message(f"the store can't be used now: {error}")


def with_long_retries(act: Callable[[], T]) -> T:
    """Do what can be done twice, over minutes in which the store can't be used."""
    return with_retries(act, log_store_error, LONG)


def retried(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method, which may run twice, go on over minutes in which the store can't be used."""

    @wraps(method)
    def over_outages(*args: P.args, **kwargs: P.kwargs) -> T:
        return with_long_retries(lambda: method(*args, **kwargs))

    return over_outages


class TextLog:
    """Appends stamped lines; a file system that fails never stops the run, it only costs lines."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._fd = self._open()
        self._lost = 0
        self._why = ""  # the first of them was lost

    @retried
    def _open(self) -> int:
        try:
            return fs.create(self._path, os.O_WRONLY | os.O_APPEND)
        except OSError as err:
            raise explained(err, self._path) from err

    def write(self, lines: Iterable[str]) -> None:
        """Append lines, each as `[time] line`."""
        stamp = _now()
        out = [f"[{stamp}] {_separated(line)}\n" for line in lines]
        lost = self._lost + len(out)
        if self._lost:
            what = f"{counted(self._lost, 'line')} lost: {self._why}"
            out.insert(0, f"[{stamp}] || detslurm: {what}\n")
        try:
            self._append("".join(out).encode("utf-8", "replace"))
        except OSError as err:
            self._why = self._why or os.strerror(err.errno or errno.EIO)
            self._lost = lost
            return
        self._lost, self._why = 0, ""

    def _append(self, data: bytes) -> None:
        try:
            fs.write_all(self._fd, data)
        except OSError as err:
            if err.errno != errno.ESTALE:
                raise
            # The file server has forgotten the open file, but not the name.
            fresh = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            stale, self._fd = self._fd, fresh
            fs.close_quietly(stale)
            fs.write_all(self._fd, data)

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
