"""Steps that the runner starts for a launcher: outputs, status, and ends on either side."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from detslurm._base.contract import STEP_SERVER
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


@pytest.mark.parametrize("end", ["close", "kill"])
def test_without_a_runner_an_orphan_of_the_launcher_starts_the_step(end: str) -> None:
    """It descends from no process of the launcher's step, and ends with the launcher."""
    lines = (
        "import os, sys; from detslurm.launch import detached_server",
        "os.environ['DETSLURM_STEP_SERVER'] = name = f'detslurm-test-{os.getpid()}'",
        "server = detached_server.start(name)",
        f"os.system({shlex.join([*PROXY, 'sh', '-c', 'echo $$ $PPID; exec sleep 3600'])!r} + ' &')",
        "sys.stdin.read()",
    )
    launcher = [sys.executable, "-c", "\n".join(lines)]
    pipe = subprocess.PIPE
    with started(launcher, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdin is not None
        step, server = map(int, process.stdout.readline().split())
        with killing(step), killing(server):
            above = parents(step)
            assert server in above and not {process.pid, os.getpid()} & set(above)
            process.stdin.close() if end == "close" else process.kill()
            wait_for(lambda: not alive(step) and not alive(server), 120, "the end of both")


def parents(pid: int) -> list[int]:
    """The processes that a process descends from, the nearest first."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def test_without_a_runner_here_the_step_is_the_launcher_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch script on another machine than the first node."""
    monkeypatch.setenv(STEP_SERVER, "detslurm-steps-nowhere")
    with calling(SAYS) as caller:
        out, _ = caller.communicate(timeout=120)
    assert (int(out), caller.returncode) == (os.getpid(), 3)
