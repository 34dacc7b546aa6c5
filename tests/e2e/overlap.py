"""Watches that no two runs share what only one may have: a trial, or a job's part of a node."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.cluster import Cluster, nodes, processes

PAUSE = 0.2


class Run(NamedTuple):
    """One execution of a trial, as its processes' environment names it."""

    trial: str
    number: str


@contextlib.contextmanager
def no_overlap(cluster: Cluster) -> Iterator[None]:
    """Looks at the code's processes all the time; at the end none may have overlapped."""
    stop = threading.Event()
    found: list[str] = []
    scans = []

    def watch() -> None:
        while not stop.wait(PAUSE):
            found.extend(_overlaps(cluster))
            scans.append(len(found))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert scans and not found, found


def _overlaps(cluster: Cluster) -> list[str]:
    # A scan takes a while: of two runs that it saw, one may have ended before the other began.
    # Those that a second scan sees as well were there at one moment.
    before = _running(cluster)
    if not _shared(before):
        return []
    return _shared({pid: where for pid, where in _running(cluster).items() if pid in before})


def _running(cluster: Cluster) -> dict[int, tuple[str, str, Run]]:
    """Node, job and run of every process of the users' code."""
    found = {}
    for pid in nodes.job_processes(cluster.layout):
        env = processes.environment(pid)
        if "DET_TRIAL_RUN_ID" in env:
            run = Run(env["DET_TRIAL_ID"], env["DET_TRIAL_RUN_ID"])
            found[pid] = (env["SLURMD_NODENAME"], env["SLURM_JOB_ID"], run)
    return found


def _shared(running: dict[int, tuple[str, str, Run]]) -> list[str]:
    holders: dict[str, set[Run]] = defaultdict(set)
    for node, job, run in running.values():
        holders[f"job {job} on {node}"].add(run)
        holders[f"trial {run.trial} on {node}"].add(run)
    return [f"{what}: {sorted(runs)}" for what, runs in holders.items() if len(runs) > 1]
