"""Finding and ending what lost jobs have left behind: strays, found by their environment."""

from __future__ import annotations

import os
import signal
import time

from detslurm._base import contract
from detslurm._base.child_processes import environ_of, pids, signal_each
from detslurm._base.process import started


def strays(tag: str, job: str = "", index: str = "") -> list[int]:
    """Processes of this user whose environment names this local cluster (and this element)."""
    marks = {f"{contract.LOCAL_TAG}={tag}".encode()}
    if job:
        marks |= {
            f"{contract.LOCAL_JOB_ID}={job}".encode(),
            f"{contract.LOCAL_TASK_ID}={index}".encode(),
        }
    return [pid for pid in pids() if pid != os.getpid() and marks <= set(environ_of(pid))]


def sweep(tag: str, ref: str = "") -> None:
    """Kill what a lost scheduler's jobs, or one lost element, have left behind."""
    job, _, index = ref.partition("_")
    # A process in uninterruptible sleep (a file server that is away) dies when that ends, which may
    # be never: after a while the scheduler goes on without it. Zombies are dead, and not ours to
    # reap.
    deadline = time.monotonic() + 10.0
    while (left := [pid for pid in strays(tag, job, index) if started(pid)]) and (
        time.monotonic() < deadline
    ):
        signal_each(left, signal.SIGKILL)
        time.sleep(0.02)  # only a parent is notified of a death; it takes a moment
