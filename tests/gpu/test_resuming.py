"""A training on a GPU that was interrupted, and one that was not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm import pytorch
from detslurm._base.flag import PreemptFlag
from detslurm.pytorch._rng import rng_state, set_rng_state
from tests.gpu.test_precision import Automatic
from tests.pytorch.conftest import REPOSITORY
from tests.pytorch.fitting import in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, numbers, same, weights


class Pinned(Regression):
    """Dropout on the device, workers and pinned memory."""

    workers = 2

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            numbers(),
            batch_size=4,
            shuffle=True,
            num_workers=self.workers,
            pin_memory=self.context.device.type == "cuda",
        )


class HalfPrecision(Pinned):
    """The same with automatic mixed precision."""

    def __init__(self, context: Any) -> None:
        context.experimental.use_amp()
        super().__init__(context)


class InBackground(Pinned):
    """The same, its checkpoints written while training goes on."""

    def __init__(self, context: Any) -> None:
        context.experimental.save_in_background()
        super().__init__(context)


class Fused(Pinned):
    """The same with Adam's one kernel for all, which keeps its count of steps on the GPU."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.optimizers.clear()
        context.lr_schedulers.clear()
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        )


def run(managed: Managed, kind: type[Regression], preempt_at: int | None, aggregation: int) -> Any:
    """The next run of a trial; it is preempted during a batch, or goes on to the end."""

    class Preempted(kind):  # type: ignore[valid-type,misc]
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx + 1 == preempt_at:
                flag.request_preemption()
            return super().train_batch(batch, epoch_idx, batch_idx)

    flag: PreemptFlag
    with managed.run() as flag, pytorch.init(aggregation_frequency=aggregation) as context:
        trial = Preempted(context)
        latest = managed.view().latest_checkpoint
        pytorch.Trainer(trial, context).fit(
            validation_period=pytorch.Batch(6),
            checkpoint_period=pytorch.Batch(4),
            latest_checkpoint=latest.uuid if latest else None,
        )
    return trial


@pytest.mark.parametrize("kind", [Pinned, HalfPrecision, InBackground, Fused])
def test_preempted_is_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: torch.device, kind: type[Regression]
) -> None:
    """To the last bit: the GPU's random numbers, gathered gradients, states of optimizers."""
    parts = Managed(tmp_path / "parts", monkeypatch)
    losses: list[float] = []
    for stop in (5, 11, None):  # 5 and 11 lie between two steps
        trial = run(parts, kind, stop, 2)
        losses += trial.losses
    whole = run(Managed(tmp_path / "whole", monkeypatch), kind, None, 2)
    assert trial.context.device.type == device.type
    assert losses == whole.losses
    assert same(weights(trial), weights(whole))


def test_random_numbers_of_every_gpu(gpu: torch.device) -> None:
    """Those of the process's own, and of others that a trial may compute on."""
    every = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    state = rng_state()
    first = [torch.rand(3, device=one).tolist() for one in every]
    set_rng_state(state)
    assert [torch.rand(3, device=one).tolist() for one in every] == first
    set_rng_state({name: value for name, value in state.items() if name != "gpu_rng_states"})
    assert torch.rand(3, device=gpu).tolist() == first[gpu.index]


READ = """\
import sys, torch
from detslurm import pytorch
from tests.pytorch.trials import Regression, numbers
assert not torch.cuda.is_available()
trial = pytorch.load_trial_from_checkpoint_path(sys.argv[1], trial_class=Regression)
trial.model.eval()
with torch.no_grad():
    print(trial.model(numbers(4).tensors[0]).double().sum().item())
"""


def test_a_machine_without_gpus_reads_it(managed: Managed, device: torch.device) -> None:
    """The weights are the same; nothing in the files asks for the device that they come from."""
    trial = in_job(managed, Regression)
    latest = managed.view().latest_checkpoint
    assert latest is not None
    storage = managed.config["checkpoint_storage"]
    assert isinstance(storage, dict)
    path = Path(storage["host_path"]) / latest.uuid
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "DETSLURM_TRACK": "0"},
        cwd=REPOSITORY,  # python -c imports from there
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    trial.model.eval()
    with torch.no_grad():
        here = trial.model(numbers(4).tensors[0].to(trial.context.device)).double().sum().item()
    assert float(done.stdout) == pytest.approx(here, rel=1e-5)


def test_amp_goes_on_from_a_checkpoint_without_it(managed: Managed) -> None:
    """The scaler starts afresh; weights and optimizer are there."""
    in_job(managed, Regression)
    latest = managed.view().latest_checkpoint
    assert latest is not None
    trial = in_job(managed, Automatic, latest_checkpoint=latest.uuid)
    assert trial.losses == [] and trial.context._amp.scaler.get_scale() == 2.0**16
