"""The journal of a local cluster: written by its one scheduler, read by anyone of its user."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(path: Path) -> Iterator[dict[str, Any]]:
    """All whole events; a line that a crash has torn is skipped."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


class Journal:
    """The writing end."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._waiting = bytearray()
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")  # a torn last line must not swallow the next event

    def append(self, event: dict[str, Any], *, commit: bool = False) -> None:
        """Write one event; with `commit` it survives a power cut.

        On a full disk a committed event raises OSError; others wait in memory for the next event.
        """
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        self._waiting += line
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except OSError as error:
            if not commit and error.errno in (errno.ENOSPC, errno.EDQUOT):
                return
            torn = len(self._waiting) < len(line)
            self._waiting[-len(line) :] = b"\n" if torn else b""
            raise
        if commit:
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def compact(path: Path, *, keep_jobs: int = 200) -> None:
    """Forget all but the last jobs that are over, once the file has grown."""
    from detslurm.slurm.local.jobs import Jobs

    if not path.exists() or path.stat().st_size < 1 << 20:
        return
    events = list(read(path))
    jobs = Jobs(events).jobs
    over = [job.id for job in jobs.values() if job.over]
    forgotten = set(over[:-keep_jobs])
    temporary = path.with_suffix(".new")
    temporary.touch(mode=0o600)
    with temporary.open("wb") as file:
        for event in events:
            if event.get("job") not in forgotten:
                file.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
