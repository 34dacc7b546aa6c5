"""A short job that writes one file, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from detslurm.sdk.jobs.queues import QUEUE_SECONDS
from detslurm.slurm import WAITING_STATES, Cluster, JobInfo, SlurmError
from detslurm.store import fs


@contextmanager
def scratch_folder(root: Path, prefix: str) -> Iterator[Path]:
    """A directory that all nodes see, removed at the end, and so is the store's root if new."""
    is_new, folder = not root.exists(), root / f"{prefix}{os.urandom(6).hex()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for place in (root / "checkpoints", root) if is_new else ():
            with suppress(OSError):
                place.rmdir()


class ProbeEnd(NamedTuple):
    """The file's bytes, or None; the job as it was seen last, or None; whether it has begun."""

    data: bytes | None
    seen: JobInfo | None
    started: bool


def wait_for_file(
    cluster: Cluster, job_id: str, path: Path, *, start: float, run: float
) -> ProbeEnd:
    """Wait for a file that a job writes; it has `start` seconds to begin, and `run` to write."""
    begun, asked = time.monotonic(), 0.0
    started: float | None = None
    seen: JobInfo | None = None
    while (data := fs.read_file(path)) is None:
        now = time.monotonic()
        if now - asked >= min(QUEUE_SECONDS, 1 + now - begun):
            asked, seen = now, _seen(cluster, job_id) or seen
            if seen is not None and seen.final:  # its file may be there, and not be seen here yet
                return ProbeEnd(fs.read_file(path, expected=True), seen, True)
            if started is None and seen is not None and seen.state not in WAITING_STATES:
                started = now
        if now - begun > start if started is None else now - started > run:
            return ProbeEnd(None, seen, started is not None)
        time.sleep(0.5)
    return ProbeEnd(data, seen or _seen(cluster, job_id), True)


def _seen(cluster: Cluster, job_id: str) -> JobInfo | None:
    with suppress(SlurmError):
        return cluster.evidence([job_id]).get(job_id)
    return None
