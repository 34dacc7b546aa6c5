"""A small trial, written for Determined's PyTorch API of any age."""

from __future__ import annotations

from typing import Any

import determined as det
import torch
from determined import pytorch
from layers import Net


class Counter(pytorch.PyTorchCallback):
    """Has a state."""

    def __init__(self) -> None:
        self.validations = 0

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validations += 1

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations, "version": str(det.__version__)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = state_dict["validations"]


class Small(pytorch.PyTorchTrial):
    """One model, one optimizer, one scheduler."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.wrap_model(Net(width=3))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        )
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5),
            pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH,
        )
        self.counter = Counter()

    def build_callbacks(self) -> dict[str, Any]:
        return {"counter": self.counter}

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader([torch.full((3,), float(i)) for i in range(8)], batch_size=2)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader([torch.full((3,), float(i)) for i in range(2)], batch_size=2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        loss = self._loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int = 0) -> dict[str, Any]:
        return {"validation_loss": self._loss(batch)}

    def _loss(self, batch: Any) -> Any:
        return ((self.model(batch) - batch.mean(1, keepdim=True)) ** 2).mean()
