"""Watches that no two runs share what only one may have: a trial, or a job's part of a node."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

from tests.cluster import Cluster, nodes, processes

PAUSE = 0.2


class Run(NamedTuple):
    """One execution of a trial, as its processes' environment names it."""

    trial: str
    number: str


class OverlapWatch:
    """Looks at the code's processes all the time inside its `with` block."""

    def __init__(self, cluster: Cluster) -> None:
        self._layout = cluster.layout
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.looks = 0
        self.found: list[str] = []

    def __enter__(self) -> OverlapWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(PAUSE):
            before = self._running()
            # A scan takes a while: of two runs that it saw, one may have ended before the other
            # began. Those that a second scan sees as well were there at one moment.
            if list(_shared(before)):
                still = {pid: where for pid, where in self._running().items() if pid in before}
                self.found += _shared(still)
            self.looks += 1

    def _running(self) -> dict[int, tuple[str, str, Run]]:
        """Node, job and run of every process of the users' code."""
        found = {}
        for pid in nodes.job_processes(self._layout):
            env = processes.environment(pid)
            if "DET_TRIAL_RUN_ID" in env:
                run = Run(env["DET_TRIAL_ID"], env["DET_TRIAL_RUN_ID"])
                found[pid] = (env["SLURMD_NODENAME"], env["SLURM_JOB_ID"], run)
        return found


def _shared(running: dict[int, tuple[str, str, Run]]) -> Iterator[str]:
    holders: dict[str, set[Run]] = defaultdict(set)
    for node, job, run in running.values():
        holders[f"job {job} on {node}"].add(run)
        holders[f"trial {run.trial} on {node}"].add(run)
    return (f"{what}: {sorted(runs)}" for what, runs in holders.items() if len(runs) > 1)
