"""Which processes of a run have no CPU, though they want one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from detslurm.exec.orphans import RunMark
from detslurm.exec.run_processes import RunProcesses, cpu_delay
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


def test_a_process_that_is_gone_has_waited_for_nothing() -> None:
    """As on a system whose kernel does not count it."""
    assert cpu_delay(2**22 + 1) == 0.0
