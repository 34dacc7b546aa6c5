"""Small trials to train."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

from detslurm import pytorch


def numbers(count: int = 48) -> torch.utils.data.TensorDataset:
    """A regression: 8 features, one target."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.prod(1, keepdim=True) + x[:, :1])


def network() -> nn.Module:
    """Dropout and batch norm: results depend on random numbers and on buffers."""
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )


class Regression(pytorch.PyTorchTrial):
    """Trains `network()`; keeps the loss of every batch."""

    shuffle = True
    workers = 0
    batch_size = 4
    records = 48

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        torch.manual_seed(context._trial_seed or 1)
        self.model = context.wrap_model(network())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95),
            pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        self.losses: list[float] = []
        self.seen: list[float] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        assert self.model.training and torch.is_grad_enabled()
        x, y = batch
        # Random numbers of all libraries take part.
        x = x + 0.01 * random.random() + 0.01 * np.random.rand()
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.losses.append(loss.item())
        self.seen.append(float(batch[0].sum()))
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        assert not (self.model.training or torch.is_grad_enabled())
        x, y = batch
        return {"loss": nn.functional.mse_loss(self.model(x), y)}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            numbers(self.records),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            num_workers=self.workers,
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(16), batch_size=4)


def weights(trial: Any) -> list[torch.Tensor]:
    """All parameters and buffers, copied."""
    return [value.clone() for value in trial.model.state_dict().values()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Equal to the last bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))
