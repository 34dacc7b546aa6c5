"""What core.init() refuses in a job."""

from __future__ import annotations

import pytest

from detslurm import _env, _info, core

from .jobs import Job


def test_several_slots_want_a_launcher_or_are_the_cpus_of_one_process(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes from sbatch asks for slots and means --cpus-per-task: the refusal says which."""
    monkeypatch.setenv(_env.SLOT_IDS, "[0, 1]")
    monkeypatch.setattr(_info, "_info", None)
    with pytest.raises(ValueError, match="a valid DistributedContext for a multi-slot") as refused:
        core.init()
    assert "detslurm.launch.torch_distributed" in str(refused.value)
    assert "slurm.sbatch_args: [--cpus-per-task=N]" in str(refused.value)
