"""Which processes of a run have no CPU, though they want one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from detslurm.exec import run_processes
from detslurm.exec.orphans import RunMark
from detslurm.exec.run_processes import Process, RunProcesses, cpu_delay
from tests.cluster.waiting import wait_for

PATIENCE = 120.0
# A mark that no process bears: those below this one count alone.
MARK = RunMark(f"/store/experiments/starved-{os.getpid()}", 7, 3, "slurm 12")
LOOPS = "while True: pass"
LOOKS_AROUND = "import time\nwhile True: time.sleep(0.1)"


@contextlib.contextmanager
def on_one_cpu(script: str, nice: int) -> Iterator[int]:
    """The pid of a process that shares one CPU with all others that begin here."""
    cpu = min(os.sched_getaffinity(0))

    def confine() -> None:
        os.sched_setaffinity(0, {cpu})
        os.nice(nice)

    argv = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(argv, preexec_fn=confine) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_code_that_others_keep_from_the_cpu_is_starved() -> None:
    """It gets less than counts as idle; one that sleeps beside the same neighbour wants nothing."""
    others = RunProcesses(MARK).used().pids  # the daemons of a cluster, say
    with (
        on_one_cpu(LOOPS, 0) as neighbour,
        on_one_cpu(LOOKS_AROUND, 0) as sleeper,
        on_one_cpu(LOOPS, 19) as starved,
    ):
        wait_for(lambda: cpu_delay(starved) > 1.0, PATIENCE, "the neighbour")
        watched = [RunProcesses(MARK, {*others, neighbour, one}) for one in (sleeper, starved)]
        before = [each.used() for each in watched]
        then, delay = time.monotonic(), cpu_delay(starved)
        wait_for(lambda: cpu_delay(starved) > delay + 3.0, PATIENCE, "three more seconds")
        after = [each.used() for each in watched]
        assert [used.pids for used in after] == [{starved}, {sleeper}]
        assert after[0].seconds - before[0].seconds < 0.05 * (time.monotonic() - then)
        assert [used.starved for used in after] == [1, 0]


def test_an_orphan_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent, of the same run, has ended in the middle of a look: at the next one it is the
    agent's child, and at the last one the agent has waited for it. A rank that srun has started
    nobody here waits for."""
    table, waited = {10: Process(9, "R", 5.0, 0), 11: Process(1, "R", 3.0, 0)}, [0.0]
    monkeypatch.setattr(run_processes, "pids", lambda: [*table])
    monkeypatch.setattr(run_processes, "read_process", lambda pid: table.get(pid))
    monkeypatch.setattr(run_processes, "mark_of", lambda pid: MARK)
    monkeypatch.setattr(run_processes, "_waited_for", lambda: waited[0])
    run = RunProcesses(MARK)
    assert run.used().seconds == 8.0
    table[10] = Process(os.getpid(), "R", 6.0, 0)
    assert run.used().seconds == 9.0
    table.clear()
    waited[0] = 6.0
    assert run.used().seconds == 9.0


def test_a_process_that_is_gone_has_waited_for_nothing() -> None:
    """As on a system whose kernel does not count it."""
    assert cpu_delay(2**22 + 1) == 0.0
