"""The wrapper around every worker: prefixes, signals, exit status, and no orphan."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from detslurm._base.contract import EXIT_LOG, JOB, PREEMPT_FLAG
from detslurm._base.flag import PreemptFlag
from detslurm.exec.line_splitter import LineSplitter
from detslurm.launch import ranks
from detslurm.launch.ranks import ExitLog, report_exit
from tests.cluster import processes
from tests.cluster.processes import alive, killing
from tests.cluster.waiting import wait_for

WRAP = [sys.executable, "-m", "detslurm.launch.wrap_rank"]


def wrap(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    return subprocess.run([*WRAP, *words], capture_output=True, text=True, env=environment)


@contextlib.contextmanager
def started(
    script: str, env: Mapping[str, str] | None = None, wrap: Sequence[str] = (*WRAP, "0")
) -> Iterator[subprocess.Popen[str]]:
    """A wrapped shell script that has said its first line."""
    argv, environment = [*wrap, "sh", "-c", script], {**os.environ, **(env or {})}
    with processes.started(argv, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_every_line_of_both_outputs_gets_the_rank() -> None:
    """A carriage return ends a line too, and so does the end; the exit status is the command's."""
    done = wrap("3", "sh", "-c", r"printf 'a\rb\nc'; echo d >&2; exit 5")
    assert done.stdout == "[rank=3] a\n[rank=3] b\n[rank=3] c\n"
    assert done.stderr == "[rank=3] d\n"
    assert done.returncode == 5


def test_each_piece_of_a_long_line_gets_the_rank() -> None:
    """And is short enough for the node agent to take it as one line."""
    done = wrap("3", sys.executable, "-c", "print('x' * 200_000)")
    agents = LineSplitter()
    lines = [*agents.feed(done.stdout.encode()), *agents.close()]
    assert all(line.startswith(b"[rank=3] x") for line in lines)
    assert sum(line.count(b"x") for line in lines) == 200_000


def test_the_rank_may_come_from_the_environment() -> None:
    """The first variable that is set counts; none is an error."""
    done = wrap("NOT_SET,MY_RANK", "--", "echo", "x", env={"MY_RANK": "2"})
    assert (done.stdout, done.returncode) == ("[rank=2] x\n", 0)
    done = wrap("NOT_SET", "echo", "x")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "NOT_SET" in done.stderr


def test_output_has_its_prefix_wherever_it_goes() -> None:
    """--no-redirect-stdio is about where, and there is one place here."""
    assert wrap("--no-redirect-stdio", "0", "--", "echo", "x").stdout == "[rank=0] x\n"


def test_bad_calls_say_what_is_wrong() -> None:
    """No command, and a command that isn't there."""
    assert wrap("0").returncode == 1
    done = wrap("0", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr


def test_signals_reach_the_command() -> None:
    """SIGTERM and SIGUSR1 are passed on; the status is what the command makes of it."""
    for sig in ("TERM", "USR1"):
        with started(f"trap 'exit 7' {sig}; echo up; while :; do sleep 0.05; done") as process:
            process.send_signal(signal.Signals[f"SIG{sig}"])
            assert process.wait(60) == 7


@pytest.mark.parametrize("tidied", [False, True])
def test_a_preemption_is_not_passed_on(tidied: bool) -> None:
    """Slurm's SIGTERM comes to the command as well, also long after /tmp was tidied up."""
    flag = PreemptFlag.create()
    flag.request_preemption()
    script = "trap 'exit 7' TERM; echo up; sleep 1 & wait; exit 0"
    with started(script, {PREEMPT_FLAG: flag.name}) as process:
        if tidied:
            Path(flag.name).unlink()
        process.terminate()
        assert process.wait(60) == 0


def test_the_stacks_of_ranks_that_srun_has_started() -> None:
    """With cgroups SIGUSR1 comes to the step's tasks alone: it is for those that can take it."""
    code = (
        "import sys; from detslurm.launch import wrap_rank as w;"
        "w.in_cgroup_of_step = lambda: True;"
        "sys.exit(w.main(['0', *sys.argv[1:]], is_task=True))"
    )
    flag = PreemptFlag.create()
    script = "trap 'kill $!; exit 7' USR1; sleep 60 & echo up; wait"
    with started(script, {PREEMPT_FLAG: flag.name}, [sys.executable, "-c", code]) as process:
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 7


def test_a_flag_that_can_not_be_seen_is_an_error_unless_it_is_another_job_s() -> None:
    """What a job inherits of the run that submitted it is forgotten."""
    hidden = {PREEMPT_FLAG: "/nowhere/flag", JOB: "1"}
    done = wrap("0", "true", env=hidden | {"SLURM_JOB_ID": "1"})
    assert done.returncode == 1
    assert "a container must see /nowhere" in done.stderr
    assert wrap("0", "true", env=hidden | {"SLURM_JOB_ID": "2"}).returncode == 0


def test_the_command_dies_with_the_wrapper() -> None:
    """kill -9 of the wrapper leaves no orphan."""
    with started("echo up; echo $$; exec sleep 3600") as process:
        assert process.stdout is not None
        command = int(process.stdout.readline().split()[-1])
        with killing(command):
            assert alive(command)
            process.kill()
            wait_for(lambda: not alive(command), 120, "the command's death")


def test_who_failed_first_counts_and_not_who_was_asked_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """mpirun ends the others at once, and they may be faster than the one that failed."""
    exits = ExitLog()
    monkeypatch.setenv(EXIT_LOG, exits.name)
    found = []
    for rank, ended in enumerate((0, 128 + signal.SIGTERM, 5, 6)):
        report_exit(rank, ended)
        found.append(exits.first_failure())
    assert found == [None, 128 + signal.SIGTERM, 5, 5]


def test_the_agent_learns_how_the_first_worker_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of one that was asked to end, nor of the others that fail for it."""
    flag = PreemptFlag.create()
    monkeypatch.setattr(ranks, "_flag", lambda: flag)
    found = []
    for rank, ended in enumerate((0, 128 + signal.SIGTERM, 128 + signal.SIGKILL, 1)):
        report_exit(rank, ended)
        found.append(flag.failure)
    flag.close()
    assert found == [0, 0, 137, 137]
