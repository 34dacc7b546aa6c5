"""`should_preempt()`: its price a batch, and how soon it turns true."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import IO

from benchmarks.bench import Bench
from benchmarks.experiments import agent_command, job_environment, submitted
from benchmarks.measure import Rounds, interleaved, timed
from benchmarks.report import Row
from detslurm._base.flag import PreemptFlag
from detslurm.core._distributed import DistributedContext
from detslurm.core._preempt import PreemptContext
from tests.cluster.processes import descendants

LOOKS = 500_000
WATCH = """\
import time
import detslurm as det
with det.core.init() as core:
    print("ready", flush=True)
    while not core.preempt.should_preempt():
        time.sleep(0.0005)
    print("stopped", time.time(), flush=True)
"""


def measure(bench: Bench) -> Iterator[Row]:
    """Microseconds a look, and milliseconds from Slurm's SIGTERM to True."""
    yield Row(what="should_preempt()", ours=_look(), unit="us", most=2)
    (latency,) = interleaved(lambda: _latency(bench), rounds=3)
    yield Row(what="SIGTERM to should_preempt()", ours=1e3 * latency, unit="ms", most=500)


def _look() -> Rounds:
    flag = PreemptFlag.create()
    context = PreemptContext(DistributedContext(), flag).start()

    def looks() -> None:
        for _ in range(LOOKS):
            context.should_preempt()

    (seconds,) = interleaved(lambda: timed(looks))
    flag.close()
    return 1e6 * seconds / LOOKS


def _latency(bench: Bench) -> float:
    """As Slurm does it: SIGTERM to the agent and to everything that it has started, at once."""
    folder = bench.folder()
    env = job_environment(bench.environment(folder))
    agent = agent_command(submitted(folder, folder / "store", "python3 train.py", WATCH))
    with subprocess.Popen(
        agent, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        _line(process.stdout, "ready")
        began = time.time()
        for pid in sorted(descendants([process.pid]) | {process.pid}):
            os.kill(pid, signal.SIGTERM)
        stopped = _line(process.stdout, "stopped")
        process.communicate()
    return float(stopped.split()[-1]) - began


def _line(output: IO[str], word: str) -> str:
    for line in output:
        if word in line:
            return line
    raise RuntimeError(f"the code ended without saying {word!r}")
