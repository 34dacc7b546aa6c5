"""Steps that the runner starts for a launcher: outputs, status, and ends on either side."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack

import pytest

from detslurm._env import STEP_SERVER
from detslurm.exec.step_server import serve_steps
from tests.cluster.processes import alive, killing, started
from tests.cluster.waiting import wait_for

PROXY = [sys.executable, "-m", "detslurm.launch.srun_proxy"]
SAYS = ["sh", "-c", "echo $PPID; echo wrong >&2; exit 3"]
STAYS = ["sh", "-c", "echo $$; exec sleep 3600"]


def calling(argv: list[str]) -> AbstractContextManager[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    return started([*PROXY, *argv], stdout=pipe, stderr=pipe)


def test_a_step_s_outputs_and_status() -> None:
    """The step is the runner's child; what it says and how it ends is its caller's."""
    with serve_steps(), calling(SAYS) as caller:
        out, err = caller.communicate(timeout=120)
    assert (int(out), err, caller.returncode) == (os.getpid(), "wrong\n", 3)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_step_ends_with_its_caller(end: str) -> None:
    """kill -9 as well as SIGTERM."""
    with serve_steps(), calling(STAYS) as caller:
        assert caller.stdout is not None
        step = int(caller.stdout.readline())
        with killing(step):
            getattr(caller, end)()
            wait_for(lambda: not alive(step), 120, "the step's end")


def test_a_step_ends_with_the_attempt() -> None:
    """The runner looks after no step any longer: it is ended, and its caller told."""
    attempt = ExitStack()
    attempt.enter_context(serve_steps())
    with attempt, calling(STAYS) as caller:
        assert caller.stdout is not None
        step = int(caller.stdout.readline())
        with killing(step):
            attempt.close()
            caller.communicate(timeout=120)
            assert caller.returncode != 0
            assert not alive(step)
    assert STEP_SERVER not in os.environ


def test_without_a_runner_here_the_step_is_the_launcher_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch script on another machine than the first node."""
    monkeypatch.setenv(STEP_SERVER, "detslurm-steps-nowhere")
    with calling(SAYS) as caller:
        out, _ = caller.communicate(timeout=120)
    assert (int(out), caller.returncode) == (os.getpid(), 3)
