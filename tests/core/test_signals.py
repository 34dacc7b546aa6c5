"""What signals do to a rank."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from detslurm._base import flag as preemption_flag
from detslurm._base.flag import PreemptFlag
from tests.cluster.processes import started, treats
from tests.cluster.waiting import wait_for

BUSY = """\
import sys, threading
from detslurm.core._context import _mind_signals

def descend(depth):
    return depth and descend(depth - 1)

def work():
    while True:
        descend(30)
        exec("[number for number in range(9)]", {})

_mind_signals()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
print("alive", flush=True)
"""


def test_a_rank_survives_any_number_of_requests_for_its_stack(tmp_path: Path) -> None:
    """While its other threads work: to read their frames at such a moment would end it."""
    argv, pipe, log = [sys.executable, "-c", BUSY], subprocess.PIPE, tmp_path / "log"
    with (
        log.open("w") as file,
        subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=file, text=True) as rank,
    ):
        assert rank.stdout is not None and rank.stdin is not None
        assert rank.stdout.readline() == "ready\n"
        for _ in range(500):
            rank.send_signal(signal.SIGUSR1)
            time.sleep(0.0005)  # signals of one kind that come together are one
        rank.stdin.close()
        assert rank.stdout.read() == "alive\n"
    assert rank.returncode == 0
    assert "(most recent call first)" in log.read_text()


# Waits at its very end, as in MPI_Finalize: Python has given its handlers up there.
LEAVES = """\
import ctypes, sys
from detslurm._base.flag import PreemptFlag
from detslurm.core._context import _mind_signals
from detslurm._base.surviving_signal import survive_preemption_signal

flag = PreemptFlag.create()
survive_preemption_signal(flag)
_mind_signals()
flag.spare_at_exit()
if "saved" in sys.argv:
    flag.acknowledge()
ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
print("leaves", flush=True)
"""


@pytest.mark.parametrize("number", preemption_flag.SIGNALS)
@pytest.mark.parametrize("word", ["saved", "not"])
def test_a_rank_that_has_saved_is_not_killed_at_its_end(word: str, number: signal.Signals) -> None:
    """Slurm's signal comes to its node when it has left by the word of another one."""
    argv, by = [sys.executable, "-c", LEAVES, word], signal.SIGKILL if word == "saved" else number
    with started(argv, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == "leaves\n"
        wait_for(
            lambda: not any(treats(rank.pid, "SigCgt", n) for n in preemption_flag.SIGNALS),
            60,
            "the end",
        )
        rank.send_signal(number)
        rank.kill()
        assert rank.wait() == -by


@pytest.mark.parametrize(
    "launcher", ["wrap_rank", "mpi", "torch_distributed", "deepspeed", "horovod"]
)
def test_nor_is_a_launcher(launcher: str) -> None:
    """Its status would be the run's, which would look like one that was killed."""
    code = (
        "import ctypes, runpy, sys\n"
        "ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))\n"
        f"runpy.run_module('detslurm.launch.{launcher}', run_name='__main__')\n"
    )
    argv = [sys.executable, "-c", code, "--help"]
    with started(argv, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: treats(process.pid, "SigIgn", signal.SIGTERM), 60, "the end")
        process.send_signal(signal.SIGTERM)
        process.kill()
        assert process.wait() == -signal.SIGKILL


AGENT = """\
import time
from detslurm._base.flag import PreemptFlag
flag = PreemptFlag.create()
print(flag.name, flush=True)
time.sleep(600)
"""


@dataclass
class Clock:
    """A clock that only sleeping moves; once it is `at` so many seconds, it calls `then`."""

    then: Callable[[], None] = lambda: None
    at: float = 0.0
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.at:
            self.then()


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[str]]:
    """A process that has made a flag, and does nothing about signals for now."""
    with started([sys.executable, "-c", AGENT], stdout=subprocess.PIPE) as process:
        yield process


@pytest.fixture
def flag(agent: subprocess.Popen[str]) -> PreemptFlag:
    """Its flag, as a rank has it."""
    assert agent.stdout is not None
    return PreemptFlag.attach(agent.stdout.readline().strip())


class TestWhyASigtermCame:
    """A rank that has got one asks the flag, before its agent may have come to raise that."""

    def test_an_agent_that_is_late_is_waited_for(
        self, flag: PreemptFlag, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may be swapped out; ended for that, the rank would lose what it has not saved."""
        monkeypatch.setattr(preemption_flag, "time", Clock(flag.request_preemption, at=1.5))
        assert flag.explains_signal()

    @pytest.mark.parametrize("failed", [False, True])
    def test_any_other_signal_ends_it_soon(
        self, flag: PreemptFlag, monkeypatch: pytest.MonkeyPatch, failed: bool
    ) -> None:
        """At once where a worker has failed: launchers end the others so."""
        if failed:
            flag.report_failure(1)
        clock = Clock()
        monkeypatch.setattr(preemption_flag, "time", clock)
        assert not flag.explains_signal()
        assert clock.now < (1 if failed else 2.5)

    def test_an_agent_that_is_gone_is_not_waited_for(
        self,
        agent: subprocess.Popen[str],
        flag: PreemptFlag,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Nothing will raise its flag."""
        agent.kill()
        agent.wait(60)
        clock = Clock()
        monkeypatch.setattr(preemption_flag, "time", clock)
        assert not flag.explains_signal()
        assert clock.now < 1
