"""The launcher on one node: workers, their failures, and signals that come by."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from detslurm._child_processes import descendants
from detslurm._env import PREEMPT_FLAG
from detslurm._flag import PreemptFlag
from tests.cluster import processes
from tests.cluster.processes import alive, killing
from tests.cluster.waiting import wait_for

LAUNCH = [sys.executable, "-m", "detslurm.launch.torch_distributed", "--nproc-per-node=2", "--"]

WORKER = """\
import os, pathlib, signal, sys, time
other = pathlib.Path(__file__).with_suffix(".up")
told = []
if sys.argv[1] == "outlive":
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
print(os.environ["USE_TORCH_DISTRIBUTED"], os.environ["DET_CHIEF_IP"], os.getpid(), flush=True)
if sys.argv[1] == "fail" and os.environ["RANK"] == "1":
    while not other.exists():
        time.sleep(0.01)
    sys.exit(7)
other.touch()
while not told:
    time.sleep(0.01)
time.sleep(1)
"""


@pytest.fixture
def worker(tmp_path: Path) -> str:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return str(path)


@contextlib.contextmanager
def started(
    worker: str, what: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The launcher and its two workers' process ids, once they have said them."""
    argv, environment = [*LAUNCH, worker, what], {**os.environ, **(env or {})}
    with processes.started(argv, stdout=subprocess.PIPE, env=environment) as launcher:
        assert launcher.stdout is not None
        lines = sorted(launcher.stdout.readline().split() for _ in range(2))
        assert [words[:3] for words in lines] == [
            [f"[rank={rank}]", "True", "127.0.0.1"] for rank in range(2)
        ]
        pids = [int(words[3]) for words in lines]
        with killing(*pids):
            yield launcher, pids


def test_a_worker_that_fails_ends_the_other(worker: str) -> None:
    """The launcher leaves within seconds, with the status of the worker that failed."""
    with started(worker, "fail") as (launcher, pids):
        assert launcher.wait(120) == 7
        assert not any(map(alive, pids))


def test_sigterm_without_preemption_ends_everything(worker: str) -> None:
    """Somebody wants the launcher to end: so do its workers."""
    with started(worker, "stay") as (launcher, pids):
        launcher.terminate()
        assert launcher.wait(120) == 128 + signal.SIGTERM
        assert not any(map(alive, pids))


def test_a_preemption_ends_nobody(worker: str) -> None:
    """SIGTERM to every process while the flag is up: who stands between lives on."""
    flag = PreemptFlag.create()
    with started(worker, "outlive", {PREEMPT_FLAG: flag.name}) as (launcher, pids):
        flag.request_preemption()
        for pid in [launcher.pid, *descendants(launcher.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert launcher.wait(120) == 0
        assert not any(map(alive, pids))
    flag.close()


def test_no_worker_outlives_the_launcher(worker: str) -> None:
    """kill -9 of the launcher ends torchrun and the workers too."""
    with started(worker, "stay") as (launcher, pids):
        launcher.kill()
        launcher.wait()
        wait_for(lambda: not any(map(alive, pids)), 120, "the workers' death")
