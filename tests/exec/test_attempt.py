"""The runner's side of one step, with a process of the test's in place of srun."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.exec.attempt import Attempt, Limits
from detslurm.exec.outcome import Cause
from detslurm.exec.signals import SignalInbox
from detslurm.exec.textlog import TextLog
from tests.cluster.waiting import wait_for


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    """One for SIGUSR1."""
    handler, wakeup = signal.getsignal(signal.SIGUSR1), signal.set_wakeup_fd(-1)
    yield SignalInbox([signal.SIGUSR1])
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGUSR1, handler)


def test_the_code_hears_of_a_signal_before_its_cause_is_known(
    tmp_path: Path, inbox: SignalInbox
) -> None:
    """A controller that takes long to say why costs nothing of the time to save."""
    heard = tmp_path / "heard"

    def why() -> Cause:
        wait_for(heard.exists, 60, "the step to be told")
        return Cause.PREEMPTION

    log = TextLog(tmp_path / "log")
    attempt = Attempt(
        ["sh", "-c", f"read word && echo $word > {heard}"],
        ["n1"],
        inbox=inbox,
        log=log,
        look=lambda: None,
        why_signalled=why,
        why_ending=lambda: Cause.KILL,
        limits=Limits(60, 30),
    )
    os.kill(os.getpid(), signal.SIGUSR1)
    report = attempt.run()
    log.close()
    assert report.cause is Cause.PREEMPTION
    assert heard.read_text() == "preempt\n"


def test_what_srun_says_of_every_step_is_left_out(tmp_path: Path, inbox: SignalInbox) -> None:
    """Also of the ranks that it starts for a launcher, whose output the agent labels."""
    said = "srun: cluster configuration lacks support for cpu binding"
    lines = [said, f"[rank=0] {said}", f"[rank=0] he said {said}"]
    log = TextLog(tmp_path / "log")
    Attempt(
        ["printf", "%s\\n", *lines],
        ["n1"],
        inbox=inbox,
        log=log,
        look=lambda: None,
        why_signalled=lambda: Cause.PREEMPTION,
        why_ending=lambda: Cause.KILL,
        limits=Limits(60, 30),
    ).run()
    log.close()
    assert (tmp_path / "log").read_text().count(said) == 1
