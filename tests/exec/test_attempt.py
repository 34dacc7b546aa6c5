"""The runner's side of one step, with a process of the test's in place of srun."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm.exec import agent_protocol
from detslurm.exec.attempt import Attempt
from detslurm.exec.attempt_state import Limits
from detslurm.exec.idle_guard import IdleGuard
from detslurm.exec.outcome import AttemptResult, Cause
from detslurm.exec.signals import SignalInbox, awake_clock
from detslurm.exec.steps import begun
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
    """One for SIGUSR1."""
    handler, wakeup = signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(-1)
    yield SignalInbox([signal.SIGUSR1])
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGUSR1, handler)


@pytest.fixture
def attempt(tmp_path: Path, inbox: SignalInbox) -> Run:
    """An attempt's result and what its log has, on `nodes` nodes."""

    def run(
        argv: Sequence[str],
        nodes: int = 1,
        signal_cause: Callable[[], Cause] = lambda: Cause.PREEMPTION,
        stop_cause: Callable[[], Cause | None] = lambda: None,
        guard: IdleGuard | None = None,
        on_idle: Callable[[str, str | None], bool] = lambda action, reason: True,
    ) -> tuple[AttemptResult, str]:
        log = TextLog(tmp_path / "log")
        reasons: Any = SimpleNamespace(
            stop_cause=stop_cause,
            signal_cause=signal_cause,
            sigterm_cause=lambda: Cause.KILL,
            seconds_to_look=lambda: 60.0,
        )
        step = begun(argv)
        watched = Attempt(
            step,
            [f"n{number}" for number in range(1, nodes + 1)],
            inbox=inbox,
            log=log,
            reasons=reasons,
            make_guard=None if guard is None else lambda: guard,
            on_idle=on_idle,
            limits=Limits(60, 30),
        )
        with step:
            result = watched.run()
        log.close()
        return result, (tmp_path / "log").read_text()

    return run


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
