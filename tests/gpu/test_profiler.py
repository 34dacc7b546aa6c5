"""Figures of GPUs, by NVIDIA's own library."""

from __future__ import annotations

import pytest
import torch

from detslurm import core
from detslurm.core._system import SystemSampler
from detslurm.store.profiling import trial_profile
from tests.cluster.waiting import wait_for
from tests.pytorch.managed import Managed

GIGABYTE = 1 << 30


@pytest.fixture(autouse=True)
def nvml(gpu: torch.device) -> None:
    """NVIDIA's library for Python."""
    pytest.importorskip("pynvml", reason="GPU: nvidia-ml-py is not installed")


def test_memory_that_is_taken_is_not_free(gpu: torch.device) -> None:
    """The figures are those of the GPU that computes, under its own name."""
    uuid = f"GPU-{torch.cuda.get_device_properties(gpu).uuid}"
    sampler = SystemSampler()
    torch.cuda.empty_cache()
    before = sampler.sample()["gpu"][uuid]
    taken = torch.empty(GIGABYTE, dtype=torch.uint8, device=gpu)
    after = sampler.sample()["gpu"][uuid]
    assert before["gpu_free_memory"] - after["gpu_free_memory"] >= GIGABYTE // 2
    assert 0 <= after["gpu_util"] <= 100
    del taken
    torch.cuda.empty_cache()


def test_a_busy_gpu_in_the_records_of_a_trial(managed: Managed, gpu: torch.device) -> None:
    """`detslurm trial profile` shows how much of it was used."""
    square = torch.randn(4096, 4096, device=gpu)

    def busy() -> bool:
        for _ in range(20):
            square @ square
        torch.cuda.synchronize()
        assert context._recorder is not None
        context._recorder.flush()
        return any(
            figures.get("gpu_util", 0) > 0
            for row in trial_profile(managed.trial, "gpu")
            for figures in row.metrics.values()
        )

    with managed.run(), core.init() as context:
        context.profiler.on(sampling_interval=0.1, samples_per_report=2)
        wait_for(busy, 120, "a GPU that is busy")
