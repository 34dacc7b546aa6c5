"""What `tests.pytorch.ranks` runs on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from detslurm import pytorch
from tests.pytorch.ranks import Plain, train
from tests.pytorch.trials import numbers


class Twice(Plain):
    """Two backward passes over the same parameters in each batch."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.optimizers.clear()
        self.optimizer = context.wrap_optimizer(self.optimizer, backward_passes_per_step=2)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.context.backward(loss / 2, retain_graph=True)
        self.context.backward(loss / 2)
        self.context.step_optimizer(self.optimizer)
        return loss


class Adversaries(Plain):
    """A generator and a discriminator, each with its optimizer; and a frozen model."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        self.model = context.wrap_model(nn.Linear(8, 8).double())
        self.critic = context.wrap_model(nn.Linear(8, 1).double())
        self.frozen = context.wrap_model(nn.Linear(8, 8).double().requires_grad_(False))
        self.opt_g = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.opt_d = context.wrap_optimizer(torch.optim.SGD(self.critic.parameters(), lr=0.1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x = self.frozen(batch[0].double())
        self.critic.requires_grad_(False)
        made = self.model(x)
        loss_g = self.critic(made).square().mean()
        self.context.backward(loss_g)
        self.critic.requires_grad_(True)
        loss_d = (self.critic(made.detach()) - self.critic(x)).square().mean()
        self.context.backward(loss_d)
        self.context.step_optimizer(self.opt_g)
        self.context.step_optimizer(self.opt_d)
        return {"g": loss_g, "d": loss_d}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": 0.0}


class Compressed(Plain):
    """Sends gradients in half precision."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_optimizer(self.optimizer, fp16_compression=True)


class Normalized(Plain):
    """Batch norm has buffers, and the only validation batch is rank 0's."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
        self.model = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(4), batch_size=4)


class AtOnce(Normalized):
    """The chief alone evaluates."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        (batch,) = data_loader
        return {"loss": self.loss(batch)}


class AsksToStop(Plain):
    """Rank 1 alone asks to stop in batch 4."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 3 and self.context.distributed.rank == 1:
            self.context.set_stop_requested(True)
        return super().train_batch(batch, epoch_idx, batch_idx)


class FailsToEvaluate(Plain):
    """Rank 1 returns other metrics than rank 0 does."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return [] if self.context.distributed.rank == 1 else {"loss": 1.0}


def plain() -> dict[str, Any]:
    """Two ranks, no aggregation."""
    return train(1, 8)


def aggregated() -> dict[str, Any]:
    """Two ranks, two batches a step."""
    return train(2, 8)


def twice() -> dict[str, Any]:
    """Two backward passes a batch."""
    return train(1, 8, Twice)


def adversaries() -> dict[str, Any]:
    """Several models and optimizers."""
    return train(1, 8, Adversaries)


def compressed() -> dict[str, Any]:
    """Half precision on the way."""
    return train(1, 8, Compressed)


def halfway() -> dict[str, Any]:
    """Save between two steps, and go on from there."""
    saved = train(2, 5)["checkpoints"][-1]
    return train(2, 8, latest_checkpoint=saved) | {"saved": saved}


def normalized() -> dict[str, Any]:
    """Validations in which not every rank takes part."""
    return train(2, 6, Normalized, validation_period=pytorch.Batch(3))


def at_once() -> dict[str, Any]:
    """Validations by the chief."""
    return train(2, 6, AtOnce, validation_period=pytorch.Batch(3))


def asks_to_stop() -> dict[str, Any]:
    """One rank's wish."""
    return train(2, 20, AsksToStop)


def fails_to_evaluate() -> str:
    """One rank's mistake, as each rank sees it."""
    try:
        train(1, 2, FailsToEvaluate)
    except TypeError as err:
        return str(err)
    return "no error"


def everything() -> dict[str, Any]:
    """All scenarios in one start of torchrun, which takes seconds."""
    names = (
        "plain", "aggregated", "twice", "adversaries", "compressed", "halfway", "asks_to_stop",
        "normalized", "at_once",
        "fails_to_evaluate",
    )  # fmt: skip
    return {name: globals()[name]() for name in names}
