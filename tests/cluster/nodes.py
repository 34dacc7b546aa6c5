"""One node: its fake GPUs, its processes, and how it loses its power."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

from tests.cluster import processes
from tests.cluster.spec import Layout
from tests.cluster.waiting import wait_for

NVIDIA_MAJOR = 195


def gpu_devices(folder: Path, count: int) -> str:
    """The stem of `count` character devices: slurmd hands out nothing else as GPUs."""
    folder.mkdir(exist_ok=True)
    try:
        for number in range(count):
            device = folder / f"gpu{number}"
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, number))
    except PermissionError:
        return "/dev/tty"  # needs no rights: nobody opens it
    return str(folder / "gpu")


def power_cut(layout: Layout, node: str) -> None:
    """SIGKILL slurmd, its slurmstepds and their tasks: nobody is left to report."""
    slurmd = processes.read_pid(layout.pid_file(f"slurmd.{node}"))
    if slurmd is not None:
        processes.send(slurmd, signal.SIGKILL)
    # All are stopped first: none may see the end of another, and record it.
    stopped: set[int] = set()
    while running := set().union(*_processes(layout, node)) - stopped:
        for pid in running:
            processes.send(pid, signal.SIGSTOP)
        stopped |= running
    # Again until nothing is found: a fork may have slipped through between look and kill.
    wait_for(lambda: not _kill_once(layout, node), 60, f"end of {node}'s processes")
    layout.pid_file(f"slurmd.{node}").unlink(missing_ok=True)


def _kill_once(layout: Layout, node: str) -> set[int]:
    steps, tasks = _processes(layout, node)
    # The kernel continues what was stopped when the parent of its process group ends.
    for pid in [*tasks, *steps]:
        processes.send(pid, signal.SIGKILL)
    return steps | tasks


def _processes(layout: Layout, node: str) -> tuple[set[int], set[int]]:
    """The slurmstepds of a node, and what they have started."""
    steps = step_daemons(layout, node)
    return steps, (processes.descendants(steps) | job_processes(layout, node)) - steps


def step_daemons(layout: Layout, node: str) -> set[int]:
    """The slurmstepd processes of a node: they write to its log."""
    log = layout.node_log(node)
    return {
        pid
        for pid in processes.pids()
        if processes.executable(pid).startswith(("slurmstepd", "slurmd"))
        and processes.has_open(pid, log)
    }


def job_processes(layout: Layout, node: str | None = None) -> set[int]:
    """Processes started by jobs on a node (any node of the cluster without one)."""
    found = set()
    for pid in processes.pids():
        environment = processes.environment(pid)
        name = environment.get("SLURMD_NODENAME")
        ours = environment.get("SLURM_CONF") == str(layout.slurm_conf)
        if ours and name is not None and node in (None, name) and pid != os.getpid():
            found.add(pid)
    return found


def kill_jobs(layout: Layout) -> None:
    """SIGKILL whatever jobs have left behind on any node."""
    for pid in job_processes(layout):
        processes.send(pid, signal.SIGKILL)
