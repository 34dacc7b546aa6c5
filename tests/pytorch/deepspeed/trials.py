"""Trials for DeepSpeed, and the same training as a plain DeepSpeed loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as torch_dist
from deepspeed.pipe import PipelineModule
from torch import nn
from torch.nn.functional import mse_loss

from detslurm import pytorch
from detslurm.pytorch.deepspeed import (
    DeepSpeedTrial,
    DeepSpeedTrialContext,
    ModelParallelUnit,
)
from tests.pytorch.deepspeed.settings import MICRO
from tests.pytorch.trials import numbers


def network() -> nn.Sequential:
    """The same weights on every rank and in every run."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )


def engine_of(model: nn.Module, ds_config: dict[str, Any]) -> Any:
    """An engine for a model."""
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config)[
        0
    ]


def loss_of(engine: Any, batch: Any) -> torch.Tensor:
    """The loss of a micro-batch."""
    dtype = next(engine.module.parameters()).dtype
    x, y = (part.to(dtype) for part in batch)
    return mse_loss(engine(x), y)


class Zero(DeepSpeedTrial):
    """A regression on one engine."""

    network = staticmethod(network)

    def __init__(self, context: DeepSpeedTrialContext, ds_config: dict[str, Any]) -> None:
        self.context = context
        self.engine = context.wrap_model_engine(engine_of(self.network(), ds_config))
        self.losses: list[float] = []
        self.calls: list[tuple[int, int]] = []

    def micro_step(self, batches: Iterator[Any]) -> torch.Tensor:
        loss = loss_of(self.engine, self.context.to_device(next(batches)))
        self.engine.backward(loss)
        self.engine.step()
        self.losses.append(loss.item())
        return loss

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.calls.append((epoch_idx, batch_idx))
        return {"loss": self.micro_step(dataloader_iter)}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": loss_of(self.engine, next(dataloader_iter)).item()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(48), batch_size=MICRO)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(20), batch_size=4)  # 5 batches: 3 and 2


class ByHand(Zero):
    """Accumulates gradients itself; `wrong` micro-batches too few."""

    def __init__(
        self, context: DeepSpeedTrialContext, ds_config: dict[str, Any], wrong: int = 0
    ) -> None:
        super().__init__(context, ds_config)
        context.disable_auto_grad_accumulation()
        self.micro_steps = context.get_num_micro_batches_per_slot() - wrong

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.calls.append((epoch_idx, batch_idx))
        losses = [self.micro_step(dataloader_iter) for _ in range(self.micro_steps)]
        return {"loss": sum(losses) / len(losses)}


class Idle(Zero):
    """Never steps."""

    def micro_step(self, batches: Iterator[Any]) -> torch.Tensor:
        return loss_of(self.engine, next(batches))


class Divided(Zero):
    """By its `ModelParallelUnit`, rank 0 reads the data of both ranks and rank 1 reports."""

    def __init__(self, context: DeepSpeedTrialContext, ds_config: dict[str, Any]) -> None:
        self.rank = context.distributed.rank
        context.set_mpu(
            ModelParallelUnit(
                data_parallel_rank=0,
                data_parallel_world_size=1,
                should_report_metrics=self.rank == 1,
                should_build_data_loader=self.rank == 0,
            )
        )
        super().__init__(context, ds_config)

    def sent(self, batches: Iterator[Any] | None) -> Iterator[Any]:
        assert (batches is None) == (self.rank == 1)
        batch = [next(batches) if batches else None]
        torch_dist.broadcast_object_list(batch, src=0)
        return iter(batch)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        metrics = super().train_batch(self.sent(dataloader_iter), epoch_idx, batch_idx)
        return metrics | {"rank": self.rank}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        metrics = super().evaluate_batch(self.sent(dataloader_iter), batch_idx)
        return metrics | {"rank": self.rank}

    def build_training_data_loader(self) -> Any:
        return None if self.rank else super().build_training_data_loader()

    def build_validation_data_loader(self) -> Any:
        return None if self.rank else super().build_validation_data_loader()


class Pipeline(DeepSpeedTrial):
    """The same regression, cut into stages."""

    def __init__(
        self, context: DeepSpeedTrialContext, ds_config: dict[str, Any], stages: int = 2
    ) -> None:
        self.context = context
        self.engine = context.wrap_model_engine(staged(stages, ds_config))
        self.losses: list[float] = []

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.engine.train_batch(dataloader_iter)
        self.losses.append(loss.item())
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.engine.eval_batch(dataloader_iter).item()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(48), batch_size=MICRO)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(20), batch_size=4)


def staged(stages: int, ds_config: dict[str, Any]) -> Any:
    """An engine for the network in stages."""
    module = PipelineModule(list(network()), num_stages=stages, loss_fn=mse_loss)
    engine = engine_of(module, ds_config)
    dtype = torch.bfloat16 if "bf16" in ds_config else torch.float32
    engine.set_batch_fn(lambda batch: tuple(part.to(dtype) for part in batch))
    return engine


class Adversaries(DeepSpeedTrial):
    """A generator and a critic, an engine each."""

    def __init__(self, context: DeepSpeedTrialContext, ds_config: dict[str, Any]) -> None:
        self.context = context
        torch.manual_seed(1)
        self.maker = context.wrap_model_engine(engine_of(nn.Linear(8, 8), ds_config))
        self.critic = context.wrap_model_engine(engine_of(nn.Linear(8, 1), ds_config))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        x = next(dataloader_iter)[0]
        made = self.maker(x)
        loss_g = self.critic.module(made).square().mean()
        self.maker.backward(loss_g)
        self.maker.step()
        loss_d = (self.critic(made.detach()) - self.critic(x)).square().mean()
        self.critic.backward(loss_d)
        self.critic.step()
        return {"maker": loss_g, "critic": loss_d}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.critic(next(dataloader_iter)[0]).mean().item()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(48), batch_size=MICRO)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(20), batch_size=4)
