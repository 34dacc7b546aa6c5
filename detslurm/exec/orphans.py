"""Orphans of earlier runs on this node: found by their environment, ended before ours begins.

A killed agent can't end its processes, and Slurm ends them only where it tracks them by cgroups.
Such code would train at the same time as the next run, on the same GPU.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from detslurm._base import contract
from detslurm._base.child_processes import environ_of, pids, signal_each
from detslurm._base.process import started

# SIGKILL takes a moment, longer where the process is deep in the kernel.
_TIMEOUT = 30.0


class RunMark(NamedTuple):
    """The run that a process works for, and the job that this run is in."""

    experiment: str
    trial: int
    run: int
    job: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> RunMark | None:
        """By its environment; a job that was submitted from inside a run does not belong to it."""
        try:
            trial, run = int(env[contract.TRIAL_ID]), int(env[contract.TRIAL_RUN_ID])
            experiment, job = env[contract.EXPERIMENT_DIR], env[contract.JOB]
        except (KeyError, ValueError):
            return None
        return cls(experiment, trial, run, job) if not contract.is_inherited(env) else None


def is_orphan(mark: RunMark, own: RunMark, is_over: Callable[[int, int], bool]) -> bool:
    """Whether a process of `mark` is known to work for a run that is over, now that ours begins.

    Claiming a run gives up the trial's earlier ones. The others of our job had their end record
    before; `is_over(trial, run)` looks it up.
    """
    if mark.experiment != own.experiment:
        return False
    if mark.trial == own.trial:
        return mark.run < own.run
    return mark.job == own.job and is_over(mark.trial, mark.run)


def end_orphans(own: RunMark, is_over: Callable[[int, int], bool]) -> tuple[int, int]:
    """End leftovers on this node: how many processes were found, how many would not go."""
    # A pid does not identify a process: it may be reused as soon as the orphan has been reaped. So
    # each is remembered with its start time: with another one it is another process.
    found: dict[int, str | None] = {}
    deadline = time.monotonic() + _TIMEOUT
    # Again until none is found: an orphan may fork between the scan and its kill.
    while (left := {*_orphans(own, is_over), *_living(found)}) and time.monotonic() < deadline:
        found |= {pid: started(pid) for pid in left - found.keys()}
        signal_each([*left], signal.SIGKILL)
        time.sleep(0.02)  # not our child, so that there is nothing to wait on
    return len(found), len(left)


def _living(found: Mapping[int, str | None]) -> Iterator[int]:
    """Those that still run: a dying process loses its environment before it lets go of a GPU."""
    for pid, start in found.items():
        if start is not None and started(pid) == start:
            yield pid


def _orphans(own: RunMark, is_over: Callable[[int, int], bool]) -> Iterator[int]:
    # Agents and the runner are never found: a run's variables are in what an agent starts, and a
    # process has in /proc what it was started with, not what it has set since.
    for pid in pids():
        mark = mark_of(pid)
        if mark is not None and is_orphan(mark, own, is_over):
            yield pid


def mark_of(pid: int) -> RunMark | None:
    """The run that a process was started for; None of others, and of those that can't be read."""
    pairs = (entry.partition(b"=") for entry in environ_of(pid))
    return RunMark.of({os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs})


def main(argv: list[str]) -> int:
    """End what a run of a trial and those before it have left on this node."""
    experiment, trial, run = argv[0], int(argv[1]), int(argv[2])
    _, left = end_orphans(RunMark(experiment, trial, run + 1, job=""), lambda trial, run: False)
    return min(left, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
