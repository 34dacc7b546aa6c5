"""What killed MPI jobs, and jobs that never began, have left behind in /dev/shm."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.cluster import processes

FOLDER = Path("/dev/shm")
NAMES = (
    *("vader_segment.*", "sm_segment.*", "osc_rdma.*", "psm_*", "sem.mp-*", "torch_*", "pymp-*"),
    "detslurm-*",  # the output of a job whose script did not begin
)


def clean(since: float) -> None:
    """Remove segments made after `since` that no process has mapped or open any more."""
    candidates = [
        path
        for pattern in NAMES
        for path in FOLDER.glob(pattern)
        if path.is_file() and path.stat().st_mtime >= since
    ]
    if not candidates:
        return
    used = _mapped()
    for path in candidates:
        with contextlib.suppress(OSError):
            if path.stat().st_ino not in used:
                path.unlink()


def _mapped() -> set[int]:
    """Inodes: a semaphore is mapped under another name, which the C library then removes."""
    found: set[int] = set()
    for pid in processes.pids():
        try:
            text = (processes.PROC / str(pid) / "maps").read_text(errors="replace")
        except OSError:
            continue
        found.update(int(line.split()[4]) for line in text.splitlines() if "/dev/shm/" in line)
    return found
