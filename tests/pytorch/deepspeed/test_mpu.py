"""Which ranks read data and report metrics, by DeepSpeed's own account or Megatron's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed looks for its accelerator once, when it is imported."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def mpu(**values: int) -> SimpleNamespace:
    """What has these functions alone."""
    replica = {"data_parallel_rank": 1, "data_parallel_world_size": 4}
    return SimpleNamespace(
        **{f"get_{name}": lambda value=value: value for name, value in (replica | values).items()}
    )


@pytest.mark.parametrize(
    "values, reports, reads",
    [
        ({}, True, True),
        ({"pipe_parallel_rank": 0, "pipe_parallel_world_size": 3}, False, True),
        ({"pipe_parallel_rank": 1, "pipe_parallel_world_size": 3}, False, False),
        ({"pipe_parallel_rank": 2, "pipe_parallel_world_size": 3}, True, True),
        ({"slice_parallel_rank": 1}, False, True),
        ({"tensor_model_parallel_rank": 1}, False, True),
        ({"model_parallel_rank": 0}, True, True),
    ],
)
def test_the_place_of_a_rank(values: dict[str, int], reports: bool, reads: bool) -> None:
    """One rank of a replica reports, in its last stage; the first and the last stage read."""
    from detslurm.pytorch.deepspeed import ModelParallelUnit, make_deepspeed_mpu

    assert make_deepspeed_mpu(mpu(**values)) == ModelParallelUnit(
        data_parallel_rank=1,
        data_parallel_world_size=4,
        should_report_metrics=reports,
        should_build_data_loader=reads,
    )
