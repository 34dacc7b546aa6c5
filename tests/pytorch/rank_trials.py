"""Trials of `tests.pytorch.scenarios`, for several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from detslurm import InvalidHP, pytorch
from detslurm.pytorch._ddp import bare
from tests.pytorch.ranks import Plain
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
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda p: nn.utils.clip_grad_norm_(p, 1.0)
        )
        return loss


class Adversaries(Plain):
    """A generator and a discriminator, each with its optimizer; and a frozen model."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        self.model = context.wrap_model(nn.Linear(8, 8).double())
        self.critic = context.wrap_model(nn.Linear(8, 1).double())
        frozen = nn.Linear(8, 8).double().requires_grad_(False)
        frozen.weight += context.distributed.rank  # until it is wrapped
        self.frozen = context.wrap_model(frozen)
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


class Careless(Adversaries):
    """The generator's backward pass goes through the discriminator, whose gradients it spoils."""

    passes = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_optimizer(self.opt_d, backward_passes_per_step=self.passes)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        made = self.model(batch[0].double())
        self.context.backward(self.critic(made).square().mean())
        self.critic.zero_grad()
        loss = (self.critic(made.detach()) - self.critic(batch[0].double())).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.opt_g)
        self.context.step_optimizer(self.opt_d)
        return {"d": loss}


class CarelessAndSaid(Careless):
    passes = 2


class Compressed(Plain):
    """Sends gradients in half precision."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.wrap_optimizer(self.optimizer, fp16_compression=True)


class Scaled(Plain):
    """A scaler in the trial's own hands; rank 1 alone has an infinite loss in batch 4."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu", init_scale=4.0))
        super().__init__(context)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        too_much = batch_idx == 3 and self.context.distributed.rank == 1
        self.context.backward(self.scaler.scale(loss * (torch.inf if too_much else 1)))
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        self.scaler.update()
        return {"loss": loss, "scale": self.scaler.get_scale()}


class Branches(Plain):
    """Each rank uses other parameters, and some are used by nobody."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        torch.manual_seed(1)
        self.model = context.wrap_model(nn.ModuleList(nn.Linear(8, 1).double() for _ in range(3)))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = (part.double() for part in batch)
        error = self.model[self.context.distributed.rank % 2](x) - y
        self.squares.update((float(error.detach().square().sum()), len(x)))  # type: ignore[attr-defined]
        return error.square().mean()


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
    """The chief alone evaluates, and has data for it."""

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        assert self.context.distributed.rank == 0
        return super().build_validation_data_loader()

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        (batch,) = data_loader
        return {"loss": self.loss(batch)}


class Drifts(Normalized):
    """Each rank tells what its own batch norms have when it validates; one is not trained."""

    passes = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.optimizers.clear()
        context.wrap_optimizer(self.optimizer, backward_passes_per_step=self.passes)
        self.frozen = context.wrap_model(nn.BatchNorm1d(8, affine=False).double())

    def loss(self, batch: Any) -> torch.Tensor:
        self.frozen(batch[0].double())
        return super().loss(batch)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(8), batch_size=4)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.loss(batch)
        mean = bare(self.model)[1].running_mean.sum() + self.frozen.running_mean.sum()
        return {"most": mean, "least": mean}

    def evaluation_reducer(self) -> dict[str, pytorch.Reducer]:
        return {"most": pytorch.Reducer.MAX, "least": pytorch.Reducer.MIN}


class DriftsByHand(Drifts):
    passes = 2


class Uneven(Plain):
    """5 batches: an epoch has 3 for the chief, 2 for the other. Compiled, too."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.model.compile(backend="aot_eager")
        self.ends: list[int] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(20), batch_size=self.batch_size)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if self.context.is_epoch_end():
            self.ends.append(batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)


class AsksToStop(Plain):
    """Rank 1 alone asks to stop in batch 4."""

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == 3 and self.context.distributed.rank == 1:
            self.context.set_stop_requested(True)
        return super().train_batch(batch, epoch_idx, batch_idx)


class CallsTheBareModel(Plain):
    """Forgets what `wrap_model()` has returned."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.model = bare(self.model)


class Unused(Plain):
    """Some parameters take no part in training."""

    passes = 1

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        net = nn.Linear(8, 1).double()
        net.unused = nn.Linear(1, 1)
        self.model = context.wrap_model(net)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = context.wrap_optimizer(optimizer, backward_passes_per_step=self.passes)
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")


class UnusedAndSaid(Unused):
    passes = 2


class Idle(Plain):
    """A parameter that no slot uses, and one that the second slot alone does, under AdamW."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context, self.batch_size, self.synced = context, 4, []
        self.net = nn.Linear(8, 1).double()
        self.net.idle = nn.Linear(1, 1).double()
        self.net.seldom = nn.Parameter(torch.ones(1).double())
        self.model = context.wrap_model(self.net)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, weight_decay=0.5)
        self.optimizer = context.wrap_optimizer(optimizer, backward_passes_per_step=2)
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")

    def loss(self, batch: Any) -> torch.Tensor:
        loss = super().loss(batch)
        return loss * self.net.seldom if self.context.distributed.rank else loss


class Reached(nn.Module):  # type: ignore[misc]
    """A model with more than a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.scale, self.module_name, self._secret = 1.0, "reached", "old"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * self.scale

    @property
    def broken(self) -> int:
        raise AttributeError("of the property")


class FailsToEvaluate(Plain):
    """Rank 1 returns other metrics than rank 0 does."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        return [] if self.context.distributed.rank == 1 else {"loss": 1.0}


class Refuses(Plain):
    """Rank 1 alone finds that the hyperparameters are no good."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        if self.context.distributed.rank == 1:
            raise InvalidHP("too wide")
        return super().evaluate_batch(batch, batch_idx)
