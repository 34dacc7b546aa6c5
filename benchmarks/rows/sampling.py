"""The node agent's samples of what a run uses: how much CPU time they take themselves.

`python -m benchmarks.rows.sampling 600` measures the thread of a real agent over so many seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.experiments import agent_command, job_environment, submitted
from benchmarks.report import Row
from detslurm.exec.orphans import RunMark
from detslurm.exec.run_processes import RunProcesses
from detslurm.exec.usage_sampler import INTERVAL

PROCESSES = 64
SAMPLES = 200
# A thousandth of one core, over the time between two samples.
ALLOWED = 1e3 * INTERVAL / 1000

SLEEPS = """\
import os, time
for _ in range({}):
    if os.fork() == 0:
        break
time.sleep({})
"""


def measure(bench: Bench) -> Iterator[Row]:
    """CPU time of a sample of 64 processes, beside all others of this machine."""
    with ExitStack() as stack:
        for _ in range(PROCESSES):
            child = stack.enter_context(subprocess.Popen(["sleep", "1000"]))
            stack.callback(child.kill)
        processes = RunProcesses(RunMark("/nowhere", 1, 1, ""))
        began = time.process_time()
        for _ in range(SAMPLES):
            assert len(processes.used().pids) >= PROCESSES
        spent = time.process_time() - began
    yield Row(
        what=f"sample of a run's {PROCESSES} processes", ours=1e3 * spent / SAMPLES, unit="ms",
        anchor=ALLOWED, peer="0.1 % of a core", most_ratio=1,
    )  # fmt: skip


def _threads(pid: int) -> dict[int, float]:
    """CPU seconds of each thread of a process, as the scheduler counts them."""
    folder = Path(f"/proc/{pid}/task")
    return {int(one.name): int((one / "schedstat").read_text().split()[0]) / 1e9
            for one in folder.iterdir()}  # fmt: skip


def watch(bench: Bench, seconds: float) -> Row:
    """The sampling thread of an agent whose run has 64 processes, over so long."""
    folder = bench.folder()
    script = SLEEPS.format(PROCESSES, seconds + 60)
    experiment = submitted(folder, folder / "store", "python3 train.py", script)
    agent = subprocess.Popen(
        agent_command(experiment), env=job_environment(dict(os.environ)),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while len(_threads(agent.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(seconds)
        spent = {tid: used for tid, used in _threads(agent.pid).items() if tid != agent.pid}
    finally:
        agent.communicate()  # the end of its input ends the agent, with all that it has started
    return Row(
        what=f"sampling over {seconds:.0f} s", ours=1e3 * sum(spent.values()), unit="ms",
        anchor=1e3 * seconds / 1000, peer="0.1 % of a core", most_ratio=1,
    )  # fmt: skip


if __name__ == "__main__":
    with Bench() as session:
        print(*watch(session, float(sys.argv[1])).cells(), sep=" | ")
