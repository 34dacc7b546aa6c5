"""The runner's side of one step, with a process of the test's in place of srun."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec import agent_protocol
from detslurm.exec.attempt import Attempt, AttemptResult, Limits
from detslurm.exec.awake_clock import awake_clock
from detslurm.exec.idle_guard import IdleGuard
from detslurm.exec.outcome import Cause
from detslurm.exec.signals import SignalInbox
from detslurm.exec.text_log import TextLog
from tests.cluster.waiting import wait_for

Run = Callable[..., tuple[AttemptResult, str]]

IDLE: dict[str, Any] = {"event": "usage", "node": 0, "seconds": 16.0, "cpu": 0.0}
ENDED = {
    "event": "ended",
    "exit_code": 0,
    "by_itself": 0,
    "preempted": False,
    "acknowledged": False,
}


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    """One for SIGUSR1 and SIGTERM."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    wakeup = signal.set_wakeup_fd(-1)
    yield SignalInbox([*handlers])
    signal.set_wakeup_fd(wakeup)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def attempt(tmp_path: Path, inbox: SignalInbox) -> Run:
    """An attempt's result and what its log has, on `nodes` nodes."""

    def run(
        argv: Sequence[str],
        nodes: int = 1,
        signal_cause: Callable[[], Cause] = lambda: Cause.PREEMPTION,
        end_reason: Callable[[], Cause] = lambda: Cause.KILL,
        stop_cause: Callable[[], Cause | None] = lambda: None,
        guard: IdleGuard | None = None,
        on_idle: Callable[[str, str | None], bool] = lambda action, reason: True,
        **limits: float,
    ) -> tuple[AttemptResult, str]:
        log = TextLog(tmp_path / "log")
        result = Attempt(
            argv,
            [f"n{number}" for number in range(1, nodes + 1)],
            inbox=inbox,
            log=log,
            stop_cause=stop_cause,
            guard=guard,
            on_idle=on_idle,
            signal_cause=signal_cause,
            end_reason=end_reason,
            limits=Limits(60, 30, **limits),
        ).run()
        log.close()
        return result, (tmp_path / "log").read_text()

    return run


def test_a_node_that_never_comes(tmp_path: Path, attempt: Run) -> None:
    """The others don't wait for ever, and the result names the node."""
    (tmp_path / "here").write_bytes(
        agent_protocol.report_line({"event": "arrived", "node": 0, "slots": 1})
    )
    step = f"cat {tmp_path}/here; read word; echo told to $word; exit 1"
    result, log = attempt(["sh", "-c", step], nodes=3, rendezvous=0.01)
    assert result.why == "no agent came up on n2, n3 within 0 s"
    assert result.exit_code == 1 and result.cause is None
    assert "told to kill" in log


@pytest.mark.parametrize(("by_itself", "exit_code"), [(137, 137), (0, 1), (3, 1)])
def test_a_process_that_was_killed_is_why_others_failed_sooner(
    by_itself: int, exit_code: int, tmp_path: Path, attempt: Run
) -> None:
    """Its node reports when it is told to end, and whether something failed before that."""
    peer = {"node": 0, "exit_code": 1, "by_itself": 1}
    killed = {"node": 1, "exit_code": 137, "by_itself": by_itself, "preempted": True}
    for node, end in enumerate((peer, killed)):
        (tmp_path / str(node)).write_bytes(agent_protocol.report_line(ENDED | end))
    step = f"cat {tmp_path}/0; read word; cat {tmp_path}/1; exit 1"
    assert attempt(["sh", "-c", step], nodes=2)[0].exit_code == exit_code


def test_a_node_that_fails_while_it_leaves_ends_the_others(tmp_path: Path, attempt: Run) -> None:
    """They may be in a collective with it, but may be saving, too: they get some time."""
    failed = ENDED | {"node": 1, "exit_code": 1, "by_itself": 1, "preempted": True}
    (tmp_path / "failed").write_bytes(agent_protocol.report_line(failed))
    step = f"read word; cat {tmp_path}/failed; read word; echo told to $word; exit 1"
    result, log = attempt(["sh", "-c", step], nodes=2, saving=0.1, stop_cause=lambda: Cause.PAUSE)
    assert "the code on n2 failed while it left" in log and "told to kill" in log
    assert result.cause is Cause.PAUSE and result.exit_code == 1


@pytest.mark.parametrize(
    ("up", "srun", "cause"),
    [
        (1, "srun: error: n2: task 1: Terminated", Cause.PREEMPTION),
        (2, "srun: error: n2: task 1: Terminated", None),
        (1, "srun: error: n2: task 1: Exited with exit code 1", None),
        (1, "srun: error: n2: task 1: Out Of Memory", None),
    ],
)
def test_a_preemption_while_agents_start(
    tmp_path: Path, attempt: Run, up: int, srun: str, cause: Cause | None
) -> None:
    """One that is still starting dies of the signal without a word, where it is no failure; but
    what has failed makes srun send the others the same signal."""
    events: list[dict[str, Any]] = [{"event": "up", "node": node} for node in range(up)]
    events.append({"event": "preempted", "node": 0})
    said = b"".join(map(agent_protocol.report_line, events))
    (tmp_path / "said").write_bytes(said)
    result, _ = attempt(["sh", "-c", f"cat {tmp_path}/said; echo {srun}; exit 143"], nodes=2)
    assert result.cause is cause and result.exit_code == 143


@pytest.mark.parametrize("why", ["Communication connection failure", "Job credential expired"])
def test_a_node_that_srun_does_not_reach(tmp_path: Path, attempt: Run, why: str) -> None:
    """Slurm may take minutes to see that it is dead; and a slow one gets its credential late."""
    up = agent_protocol.report_line({"event": "up", "node": 0})
    (tmp_path / "said").write_bytes(
        up
        + f"srun: error: Task launch for StepId=7.1 failed on node n2: {why}\n"
        f"srun: error: Application launch failed: {why}\n".encode()
    )
    result, _ = attempt(["sh", "-c", f"cat {tmp_path}/said; exit 233"], nodes=2)
    assert (result.unlaunched, result.exit_code, result.cause) == (["n2"], 233, None)


def test_a_node_that_comes_up_after_srun_gave_it_up(tmp_path: Path, attempt: Run) -> None:
    """Its code would begin in a step that srun ends, while the same run begins in another one."""
    here = {"event": "arrived", "addr": "n", "slots": 1, "port": 1}
    first, second = (agent_protocol.report_line(here | {"node": node}) for node in (0, 1))
    line = b"srun: error: Task launch for StepId=7.1 failed on node n2: Socket timed out\n"
    (tmp_path / "said").write_bytes(first + line + second)
    # The runner has seen all that it was told before.
    seen = f"echo seen; until grep -q seen {tmp_path}/log; do sleep 0.05; done"
    step = f"cat {tmp_path}/said; {seen}; if read -t 0; then echo told; fi; exit 233"
    result, log = attempt(["bash", "-c", step], nodes=2)
    assert result.unlaunched == ["n2"] and "told" not in log


@pytest.mark.parametrize(("arrived", "why"), [(2, "Socket timed out"), (1, "User not found")])
def test_launches_that_fail_for_another_reason(
    tmp_path: Path, attempt: Run, arrived: int, why: str
) -> None:
    """Those of the code's own steps, and those that will fail again."""
    here = {"event": "arrived", "addr": "n", "slots": 1, "port": 1}
    said = [agent_protocol.report_line(here | {"node": node}) for node in range(arrived)]
    line = f"srun: error: Task launch for StepId=7.2 failed on node n2: {why}\n"
    (tmp_path / "said").write_bytes(b"".join(said) + line.encode())
    result, _ = attempt(["sh", "-c", f"cat {tmp_path}/said; exit 1"], nodes=2)
    assert result.unlaunched == []


def test_a_request_that_is_made_again_is_told_once(tmp_path: Path, attempt: Run) -> None:
    """By the nodes, and by Slurm when the whole job ends."""
    preempted = agent_protocol.report_line({"event": "preempted", "node": 0})
    (tmp_path / "said").write_bytes(preempted)
    step = f"cat {tmp_path}/said; kill -TERM {os.getpid()}; read a; read b; exit 143"
    result, log = attempt(["sh", "-c", step], end_reason=lambda: Cause.PREEMPTION)
    assert result.cause is Cause.PREEMPTION
    assert log.count("asking the code to stop: preemption") == 1


def test_the_code_hears_of_a_signal_before_its_cause_is_known(tmp_path: Path, attempt: Run) -> None:
    """A controller that takes long to say why costs nothing of the time to save."""
    heard = tmp_path / "heard"

    def why() -> Cause:
        wait_for(heard.exists, 60, "the step to be told")
        return Cause.PREEMPTION

    os.kill(os.getpid(), signal.SIGUSR1)
    result, _ = attempt(["sh", "-c", f"read word && echo $word > {heard}"], signal_cause=why)
    assert result.cause is Cause.PREEMPTION
    assert heard.read_text() == "preempt\n"


def test_a_runner_that_was_suspended_has_not_been_awake(
    attempt: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budgets go by that clock."""
    hour, select = 3600.0, selectors.DefaultSelector.select

    def late(self: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        monkeypatch.setattr(awake_clock, "_monotonic", lambda: time.monotonic() + hour)
        return select(self, timeout)

    monkeypatch.setattr(awake_clock, "_suspended", 0.0)
    monkeypatch.setattr(selectors.DefaultSelector, "select", late)
    begun = awake_clock()
    attempt(["true"])
    assert awake_clock() - begun < 60


def test_what_srun_says_of_every_step_is_left_out(attempt: Run) -> None:
    """Also of the ranks that it starts for a launcher, whose output the agent labels."""
    said = "srun: cluster configuration lacks support for cpu binding"
    _, log = attempt(["printf", "%s\\n", said, f"[rank=0] {said}", f"[rank=0] he said {said}"])
    assert log.count(said) == 1


def test_no_report_is_taken_for_a_rewritten_line(tmp_path: Path, attempt: Run) -> None:
    """Whatever escapes the log lines before it end with: each node's last line counts."""
    said = agent_protocol.log_line(0, "[rank=0] bar \x1b[A\x1b[A\x1b[A")
    (tmp_path / "said").write_bytes(
        said + b"".join(agent_protocol.report_line(ENDED | {"node": node}) for node in range(3))
    )
    result, _ = attempt(["cat", str(tmp_path / "said")], nodes=3)
    assert result.exit_code == 0 and not result.agent_lost


@pytest.mark.parametrize(
    ("action", "told", "cause"), [("restart", "kill", None), ("pause", "preempt", Cause.PAUSE)]
)
def test_an_idle_run_is_ended_as_its_user_wants(
    tmp_path: Path, attempt: Run, action: str, told: str, cause: Cause | None
) -> None:
    """At once where it is to begin again; by a pause of the experiment, which others see, too."""
    (tmp_path / "sample").write_bytes(agent_protocol.report_line(IDLE))
    guard = IdleGuard(15.0, action, nodes=["n1"], slots=1, has_news=lambda: False)
    done: list[tuple[str, str | None]] = []

    def recorded(what: str, reason: str | None) -> bool:
        done.append((what, reason))
        return True

    result, log = attempt(
        ["sh", "-c", f"cat {tmp_path}/sample; read word; echo told to $word; exit 137"],
        guard=guard,
        on_idle=recorded,
        stop_cause=lambda: Cause.PAUSE if done else None,
    )
    assert f"told to {told}" in log and guard.text() in log
    paused = action == "pause"
    assert done == ([("pause", guard.text())] if paused else [])
    assert result.why == (None if paused else guard.text())
    assert result.cause is cause and result.exit_code == 137


@pytest.mark.parametrize("action", ["pause", "warn"])
def test_what_the_guard_cannot_record_it_does_not_do(
    tmp_path: Path, attempt: Run, action: str
) -> None:
    """A paused run would begin again, as after a failure. It is tried again, but not at each
    sample."""
    said = agent_protocol.report_line(IDLE) * 3
    (tmp_path / "said").write_bytes(said + agent_protocol.report_line(ENDED | {"node": 0}))
    guard = IdleGuard(15.0, action, nodes=["n1"], slots=1, has_news=lambda: False)
    tries: list[str] = []

    def unrecorded(what: str, _: str | None) -> bool:
        tries.append(what)
        return False

    result, log = attempt(["cat", str(tmp_path / "said")], guard=guard, on_idle=unrecorded)
    assert tries == [action]
    assert result.exit_code == 0 and result.cause is None and "idle" not in log


def test_a_pause_that_stands_although_its_writing_failed(tmp_path: Path, attempt: Run) -> None:
    (tmp_path / "said").write_bytes(agent_protocol.report_line(IDLE))
    guard = IdleGuard(15.0, "pause", nodes=["n1"], slots=1, has_news=lambda: False)
    written: list[str] = []

    def fails(what: str, _: str | None) -> bool:
        written.append(what)
        return False

    result, log = attempt(
        ["sh", "-c", f"cat {tmp_path}/said; read word; echo told to $word; exit 137"],
        guard=guard,
        on_idle=fails,
        stop_cause=lambda: Cause.PAUSE if written else None,
    )
    assert result.cause is Cause.PAUSE and "told to preempt" in log and guard.text() in log


@pytest.mark.parametrize("more", [{"last": True}, {}])
def test_the_last_sample_of_a_run_is_not_judged(
    tmp_path: Path, attempt: Run, more: dict[str, Any]
) -> None:
    """It measures less than the others."""
    ended = agent_protocol.report_line(ENDED | {"node": 0})
    (tmp_path / "said").write_bytes(agent_protocol.report_line(IDLE | more) + ended)
    guard = IdleGuard(15.0, "warn", nodes=["n1"], slots=1, has_news=lambda: False)
    _, log = attempt(["cat", str(tmp_path / "said")], guard=guard)
    assert ("holds its slots idle" in log) == (not more)


@pytest.mark.parametrize(("up", "unlaunched"), [(True, []), (False, ["n1"])])
def test_one_node_that_srun_gives_up(
    tmp_path: Path, attempt: Run, up: bool, unlaunched: list[str]
) -> None:
    """Its agent waits for no others: where it is up, the code may have begun, and this run must not
    begin again in another step."""
    line = b"srun: error: Task launch for StepId=7.1 failed on node n1: Socket timed out\n"
    said = agent_protocol.report_line({"event": "up", "node": 0}) if up else b""
    (tmp_path / "said").write_bytes(line + said)
    result, _ = attempt(["sh", "-c", f"cat {tmp_path}/said; exit 233"], nodes=1)
    assert result.unlaunched == unlaunched and result.exit_code == 233
