"""What core.init() refuses in a job."""

from __future__ import annotations

import pytest

from detslurm import core
from detslurm._base import contract, info
from detslurm.store import fold_trial

from .jobs import Job


def test_several_slots_want_a_launcher_or_are_the_cpus_of_one_process(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes from sbatch asks for slots and means --cpus-per-task: the refusal says which."""
    monkeypatch.setenv(contract.SLOT_IDS, "[0, 1]")
    monkeypatch.setattr(info, "_info", None)
    with pytest.raises(ValueError, match="a valid DistributedContext for a multi-slot") as refused:
        core.init()
    assert "detslurm.launch.torch_distributed" in str(refused.value)
    assert "slurm.sbatch_args: [--cpus-per-task=N]" in str(refused.value)


def test_a_run_records_that_its_code_asks_for_preemption(job: Job) -> None:
    """Once, however often it asks: `pause` warns of code that never does."""
    with core.init() as context:
        assert not fold_trial(job.trial).asks_to_preempt
        context.preempt.should_preempt()
        context.preempt.should_preempt()
    assert fold_trial(job.trial).asks_to_preempt
    assert job.trial.records_path(1).read_bytes().count(b"asks_to_preempt") == 1
