"""The node agent between the code, Slurm's signals and a runner that takes its time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.experiments import Nowhere, agent_command, job_environment, submitted
from detslurm.exec import agent as module
from detslurm.exec import code_process
from detslurm.exec.agent_protocol import PEERS, PREEMPT
from detslurm.exec.code_process import CodeProcess
from detslurm.exec.line_splitter import LineSplitter
from detslurm.sdk import Client
from detslurm.store import ExperimentDir
from tests.cluster.processes import started, treats
from tests.cluster.waiting import wait_for
from tests.exec.nodes import agent, reports

PATIENCE = 120

# A thread prints more than any pipe holds, in lines of a megabyte.
FLOODS = """\
    import os, pathlib, threading, time
    import detslurm as det

    def flood():
        while True:
            print("x" * 1_000_000)

    here = pathlib.Path(os.environ["HERE"])
    with det.core.init() as core:
        threading.Thread(target=flood, daemon=True).start()
        (here / "floods").touch()
        while not core.preempt.should_preempt():
            time.sleep(0.01)
        (here / "preempted").touch()
        os._exit(0)
"""


def order(process: subprocess.Popen[bytes]) -> None:
    """Ask the code to leave, as the runner does."""
    assert process.stdin is not None
    process.stdin.write(f"{PREEMPT}\n".encode())
    process.stdin.flush()


@pytest.mark.parametrize("ask", [subprocess.Popen.terminate, order])
def test_a_request_reaches_the_code_while_nobody_reads_its_output(
    tmp_path: Path, ask: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """Slurm's signal, or the runner's order: the agent reads it although it can't write a byte."""
    with agent(tmp_path, FLOODS) as process:
        wait_for((tmp_path / "floods").exists, PATIENCE, "the flood")
        ask(process)
        wait_for((tmp_path / "preempted").exists, PATIENCE, "the code to hear of it")


WRITES = """\
    import pathlib, traceback

    traceback.print_stack()
    pathlib.Path("runs").mkdir()
    for name in ("best.pt", ".cache", "runs/events"):
        pathlib.Path(name).touch()
"""


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("", "deleted with the working directory: best.pt, runs/. To keep files, name them"),
        ("import shutil; shutil.rmtree(pathlib.Path.cwd())", ""),
        ("import shutil; p = pathlib.Path.cwd(); shutil.rmtree(p); p.touch()", ""),
    ],
)
def test_what_the_code_wrote_beside_itself_is_named(tmp_path: Path, more: str, named: str) -> None:
    """It goes with the directory; code that has removed that itself hears nothing more of it."""
    with agent(tmp_path, WRITES + f"    {more}\n") as process:
        assert process.stdout is not None
        said = process.stdout.read().decode()
    assert process.returncode == 0
    assert named in said and ("deleted with" in said) == bool(named)
    assert '  File "train.py", line 3, in <module>' in said
    assert ('"deleted":"best.pt, runs/"' in said) == bool(named)


@pytest.mark.parametrize(("gpus", "expected"), [("", "cpu"), ("0,1", "cuda")])
def test_the_code_has_the_variables_of_its_slots(tmp_path: Path, gpus: str, expected: str) -> None:
    """Where the configuration leaves their type to the partition it is what the job has got."""
    code = tmp_path / "code"
    code.mkdir()
    client = Client(tmp_path / "store", connect=lambda name: Nowhere(tmp_path / "store"))
    config = {
        "entrypoint": "echo it is $SLOTS",
        "searcher": {"name": "single", "metric": "loss"},
        "environment": {"environment_variables": {"cpu": ["SLOTS=cpu"], "cuda": ["SLOTS=cuda"]}},
    }
    experiment = client.store.experiment(client.submit(config, code).id)
    environment = job_environment(dict(os.environ) | {"CUDA_VISIBLE_DEVICES": gpus})
    command, pipe = agent_command(experiment), subprocess.PIPE  # of orders, open as the runner's is
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert f"it is {expected}\n" in process.stdout.read().decode()


WAITS = """\
    import os, pathlib, time
    import detslurm as det

    here = pathlib.Path(os.environ["HERE"])
    with det.core.init() as core:
        (here / "up").touch()
        while not core.preempt.should_preempt():
            time.sleep(0.01)
"""


def test_a_command_may_be_as_long_as_thousands_of_nodes_make_it(tmp_path: Path) -> None:
    """The peers are one line, and what comes after it is understood too."""
    with agent(tmp_path, WAITS) as process:
        wait_for((tmp_path / "up").exists, PATIENCE, "the code")
        assert process.stdin is not None
        peers = json.dumps({"container_addrs": ["10.20.30.40"] * 10_000})
        process.stdin.write(f"{PEERS}{peers}\n{PREEMPT}\n".encode())
        process.stdin.flush()
        assert reports(process)["ended"]["exit_code"] == 0


def test_signals_are_discarded_before_the_store_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default action of one that comes meanwhile would end the agent."""
    calls: list[str] = []

    def read(path: Path) -> None:
        calls.append("read")
        raise FileNotFoundError

    monkeypatch.setattr(module, "discard_signals", lambda: calls.append("discard"))
    monkeypatch.setattr(ExperimentDir, "at", read)
    with pytest.raises(FileNotFoundError):
        module.Agent(Path(), 1, 1)
    assert calls == ["discard", "read"]


class Remaining(CodeProcess):
    """Code that has left processes behind."""

    def __init__(
        self, *, killed: bool = False, killable: bool = True, left_with: int | None = None
    ) -> None:
        flag: Any = SimpleNamespace(preempt=killed or left_with is not None)
        self.messages: list[str] = []
        link: Any = SimpleNamespace(log_message=self.messages.append)
        super().__init__(link, flag, self._count_wait)
        child: Any = SimpleNamespace(returncode=left_with)
        self._output, self.killed, self._child = LineSplitter(), killed, child
        self.left, self.killable, self.waits = [1], killable, 0
        self.signals: list[signal.Signals] = []

    def _others(self) -> list[int]:
        return self.left

    def _may_have_left(self) -> bool:
        return True

    def _signal_all(self, sig: signal.Signals) -> None:
        self.signals.append(sig)
        if self.killable and sig is signal.SIGKILL:
            self.left = []

    def _count_wait(self, timeout: float) -> None:
        self.waits += 1
        assert self.waits < 1000, "it waits without end"


def test_what_can_not_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node has to report its end all the same, and says what is left."""
    monkeypatch.setattr(code_process, "_REMAINING_GRACE", 0.0)
    monkeypatch.setattr(code_process, "_KILL_TIMEOUT", 0.0)
    stuck = Remaining(killable=False)
    stuck.end_remaining()
    assert signal.SIGKILL in stuck.signals
    assert "1 process left that did not end when killed" in stuck.messages[0]


def test_after_a_kill_nothing_is_left_to_save() -> None:
    """A process that was forked in the middle of the kill is killed too, at once."""
    remaining = Remaining(killed=True)
    remaining.end_remaining()
    assert remaining.signals[-1] is signal.SIGKILL
    assert remaining.waits == 1


def test_what_an_orderly_end_leaves_behind_holds_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel in the background, say; a launcher that died of the signal may have workers that
    save, and those are waited for."""
    monkeypatch.setattr(code_process, "_LEAVING_GRACE", 0.0)
    monkeypatch.setattr(code_process, "_REMAINING_GRACE", 0.0)
    done = Remaining(left_with=0)
    done.end_remaining()
    assert done.signals == [signal.SIGTERM, signal.SIGKILL]
    with pytest.raises(AssertionError, match="waits without end"):
        Remaining(left_with=-signal.SIGTERM).end_remaining()


def test_a_node_that_could_not_begin_is_to_blame(tmp_path: Path) -> None:
    """The report says so, and why; the code had no part in it."""
    experiment = submitted(tmp_path, tmp_path / "store", "echo began")
    shutil.rmtree(experiment.code)
    orders = subprocess.PIPE  # the runner's, who lives as long as nobody closes it
    command, env = agent_command(experiment), job_environment(dict(os.environ))
    with subprocess.Popen(command, env=env, stdin=orders, stdout=subprocess.PIPE) as process:
        ended = reports(process)["ended"]
    assert ended["unprepared"] and "can't prepare the working directory" in ended["why"]
    assert ended["exit_code"] == process.returncode == 1


# Waits at its very end, where Python has given its handlers up.
LATE = """\
import ctypes, sys
from detslurm.exec.agent import main

ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))
sys.exit(main(sys.argv[1:]))
"""


def test_a_signal_at_its_end_does_not_change_its_status(tmp_path: Path) -> None:
    """Slurm's may be that late; srun would end the nodes that still save."""
    experiment = submitted(tmp_path, tmp_path / "store", "echo done")
    command, pipe = agent_command(experiment), subprocess.PIPE
    argv = [sys.executable, "-c", LATE, *command[command.index("detslurm.exec.agent") + 1 :]]
    env = job_environment(dict(os.environ))
    with started(argv, env=env, stdin=pipe, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: treats(process.pid, "SigIgn", signal.SIGTERM), PATIENCE, "its end")
        process.send_signal(signal.SIGTERM)
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_node_that_can_not_read_the_store_is_to_blame(tmp_path: Path) -> None:
    """Its file system is not mounted there, say: the runner learns which node it is, and why."""
    experiment = submitted(tmp_path, tmp_path / "store", "echo began")
    command, env = agent_command(experiment), job_environment(dict(os.environ))
    experiment.path.rename(tmp_path / "elsewhere")
    orders = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=orders, stdout=subprocess.PIPE) as process:
        ended = reports(process)["ended"]
    assert ended["unprepared"] and not ended["preempted"]
    assert f"{os.uname().nodename} can't read the store: there is no experiment" in ended["why"]
    assert ended["exit_code"] == process.returncode == 1
