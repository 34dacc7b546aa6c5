"""Which device a process takes, and how tensors come there and back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from detslurm import pytorch
from detslurm.pytorch import Batch
from detslurm.pytorch._base_context import device_of
from detslurm.pytorch.checkpointing._snapshot import Snapshots
from tests.pytorch.fitting import fit
from tests.pytorch.trials import Regression, numbers

MANY = 64 << 20  # bytes: a copy of these takes longer than to ask for it


def test_everything_is_where_the_trial_computes(root: Path, device: torch.device) -> None:
    """Batches of training and validation, models, states of optimizers."""

    class Where(Regression):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            assert {part.device for part in batch} == {self.context.device}
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            assert {part.device for part in batch} == {self.context.device}
            return super().evaluate_batch(batch, batch_idx)

    trial = fit(Where, max_length=Batch(2))
    assert trial.context.device.type == device.type
    moments = [own["exp_avg"] for own in trial.optimizer.state.values()]
    assert {tensor.device for tensor in [*trial.model.parameters(), *moments]} == {
        trial.context.device
    }


def test_a_rank_takes_its_own_gpu(gpu: torch.device) -> None:
    """By its local rank where it sees all of the node's, and the only one where Slurm shows it no
    other; a process alone stays where its program is."""
    count = torch.cuda.device_count()
    for local_rank in range(2 * count):
        dist: Any = SimpleNamespace(size=2 * count, local_rank=local_rank)
        assert device_of(count, dist) == torch.device("cuda", local_rank % count)
    torch.cuda.set_device(count - 1)
    alone: Any = SimpleNamespace(size=1, local_rank=0)
    assert device_of(count, alone).index == torch.cuda.current_device() == count - 1
    torch.cuda.set_device(gpu)


WHO = """\
from detslurm import pytorch
import torch
with pytorch.init() as context:
    uuid = torch.cuda.get_device_properties(context.device).uuid
    print(context.device, uuid)
"""


@pytest.mark.parametrize("name", ["number", "uuid"])
def test_cuda_visible_devices_as_slurm_sets_it(gpu: torch.device, root: Path, name: str) -> None:
    """A number among the node's, or the GPU's own name; the process counts from 0 again."""
    last = torch.cuda.device_count() - 1
    uuid = str(torch.cuda.get_device_properties(last).uuid)
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
    number = visible[last] if len(visible) > last and visible[last] else str(last)
    value = number if name == "number" else f"GPU-{uuid}"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": value, "DETSLURM_TRACK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", WHO], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["cuda:0", uuid], done.stderr


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_pinned_batches_arrive_while_the_host_goes_on(root: Path, gpu: torch.device) -> None:
    """In the whole of the loop, from one batch to the next, nothing waits for the GPU."""

    class Pinned(Regression):
        workers = 2

        def build_training_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(
                numbers(), batch_size=4, num_workers=self.workers, pin_memory=True
            )

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 9:
                torch.cuda.set_sync_debug_mode("default")  # a report follows, which needs numbers
            loss = (self.model(batch[0]) - batch[1]).square().mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            if batch_idx == 2:
                torch.cuda.set_sync_debug_mode("error")
            return {"loss": loss}

    try:
        trial = fit(Pinned, max_length=Batch(10), reporting_period=Batch(10))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    pinned = torch.arange(MANY // 4).pin_memory()
    moved = pytorch.to_device({"x": [pinned]}, trial.context.device)
    assert int(moved["x"][0].sum()) == int(pinned.sum())


def test_a_copy_is_of_the_moment_it_was_taken(device: torch.device) -> None:
    """Training goes on and changes the tensors at once; what was queued before still counts, and
    the copy is whole when it is there. Its memory is pinned, and used again."""
    tensor = torch.zeros(MANY // 4, device=device)
    snapshots = Snapshots()
    places = []
    for number in range(1, 4):
        for _ in range(number * 20):
            tensor.add_(1)
        snapshots.begin()
        (copy,) = snapshots.take([tensor])
        expected = 10 * number * (number + 1)
        tensor.add_(1000).sub_(1000)
        assert copy.device.type == "cpu" and copy.is_pinned() is (device.type == "cuda")
        assert torch.equal(copy, torch.full_like(copy, expected))
        places.append(copy.data_ptr())
    assert len(set(places)) == 1
