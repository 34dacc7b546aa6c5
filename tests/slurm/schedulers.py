"""Looking at a local cluster's scheduler, and ending it the hard way."""

from __future__ import annotations

import os
import signal

from detslurm.slurm import LocalCluster
from detslurm.slurm.local import strays as stray_processes
from detslurm.slurm.local import wire
from tests.cluster import wait_for


def scheduler_pid(cluster: LocalCluster) -> int | None:
    """The running scheduler's process id."""
    try:
        pid: int = wire.ask(cluster.paths.address, {"verb": "pid"})
    except wire.NoScheduler:
        return None
    return pid


def kill_scheduler(cluster: LocalCluster) -> None:
    """kill -9, and wait until nobody answers."""
    pid = scheduler_pid(cluster)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: scheduler_pid(cluster) is None, what="the scheduler's end")


def strays(cluster: LocalCluster) -> list[int]:
    """Processes of the cluster's jobs that exist."""
    return stray_processes.strays(cluster.paths.tag)


def end_scheduler(cluster: LocalCluster) -> None:
    """Kill the scheduler; its supervisors end all jobs."""
    kill_scheduler(cluster)
    wait_for(lambda: not strays(cluster), what="the end of all jobs")
