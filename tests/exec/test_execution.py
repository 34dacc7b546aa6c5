"""One trial in the hands of a job, without a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.exec.agenda import FixedAgenda
from detslurm.exec.execution import Execution
from detslurm.exec.outcome import Next
from detslurm.exec.signals import SignalInbox
from detslurm.exec.textlog import tell
from detslurm.exec.wishes import Wishes
from detslurm.slurm import Allocation
from tests.sdk.scenes import Scene


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    """One that no signal is for."""
    before = signal.set_wakeup_fd(-1)
    yield SignalInbox([])
    signal.set_wakeup_fd(before)


def test_gpus_that_were_dealt_unequally(tmp_path: Path, inbox: SignalInbox) -> None:
    """No step can use them: the trial says so and is over, instead of its runner."""
    scene = Scene(tmp_path / "store")
    experiment = scene.experiment()
    wishes = Wishes(experiment)
    wishes.look()
    allocation = Allocation(
        cluster="slurm", job_id="7", nodes=("n1", "n2"), slot_ids=("0", "1", "2"), gpus_of_job=4
    )
    agenda = FixedAgenda(
        wishes, experiment.config(), range(1), ref="7", cluster=lambda name: scene.queue
    )
    assert agenda.more()
    task = agenda.take()
    assert task is not None
    execution = Execution(
        task,
        agenda=agenda,
        wishes=wishes,
        config=experiment.config(),
        allocation=allocation,
        cluster=scene.queue,
        inbox=inbox,
    )
    decision, _ = execution.run()
    assert (decision.outcome, decision.next) == ("error", Next.LEAVE)
    assert "3 of 4 GPUs" in decision.reason
    trial = scene.client.trial(1)
    assert trial.state == "ERROR" and "3 of 4 GPUs" in str(trial.row.end_reason)
    assert "slurm.slots_per_node" in trial.directory.log_path(1).read_text()


def test_output_that_is_full_ends_nothing() -> None:
    """What can't be said is not said; nothing is left that would fail at the end."""
    output, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    try:
        tell("too much")
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(full)
