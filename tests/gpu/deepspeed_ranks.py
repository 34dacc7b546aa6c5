"""DeepSpeed on one of several ranks, by a DeepSpeedTrial and by its own loop:
python -m tests.gpu.deepspeed_ranks STAGE FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

from detslurm import pytorch
from detslurm.pytorch import deepspeed as ours
from tests.pytorch.ranks import Seen
from tests.pytorch.trials import numbers

MICRO, ACCUMULATED = 8, 2
BATCHES = 6
"""Micro-batches."""


def configuration(stage: int, *, gpu: bool) -> dict[str, Any]:
    """Adam as DeepSpeed makes it: one fused kernel on a GPU. Stage 0 has no bfloat16 engine that
    every version can load again."""
    parameters = {"lr": 0.01} if gpu else {"lr": 0.01, "torch_adam": True}
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": ACCUMULATED,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": parameters},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": stage > 0},
    }


def engine_of(stage: int) -> Any:
    """A new engine, the same each time."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    config = configuration(stage, gpu=torch.cuda.is_available())
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    return engine


def step(engine: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Train on a micro-batch; its loss."""
    dtype = next(engine.module.parameters()).dtype
    loss = nn.functional.mse_loss(engine(x.to(dtype)).float(), y)
    engine.backward(loss)
    engine.step()
    return loss


def train(engine: Any, first: int, last: int) -> list[float]:
    """The losses of this rank's micro-batches."""
    own = torch.arange(engine.global_rank, len(data(engine.world_size)) // MICRO, engine.world_size)
    losses = []
    for index in range(first, last):
        start = int(own[index % ACCUMULATED]) * MICRO
        x, y = (part.to(engine.device) for part in data(engine.world_size)[start : start + MICRO])
        losses.append(step(engine, x, y).item())
    return losses


def data(ranks: int) -> TensorDataset:
    """Records of one batch of each rank, which are dealt to them by micro-batches."""
    return numbers(MICRO * ACCUMULATED * ranks)


class Trial(ours.DeepSpeedTrial):
    """The same training; where it says so, its checkpoints are written while it goes on."""

    def __init__(
        self, context: ours.DeepSpeedTrialContext, stage: int, in_background: bool
    ) -> None:
        if in_background:
            context.experimental.save_in_background()
        self.context = context
        self.engine = context.wrap_model_engine(engine_of(stage))
        self.losses: list[float] = []
        self.seen = Seen()

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"seen": self.seen}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(data(self.context.distributed.size), batch_size=MICRO)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(data(self.context.distributed.size), batch_size=MICRO)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y = self.context.to_device(next(dataloader_iter))
        assert x.device == self.engine.device == self.context.device
        loss = step(self.engine, x, y)
        self.losses.append(loss.item())
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        x, y = self.context.to_device(next(dataloader_iter))
        x = x.to(next(self.engine.module.parameters()).dtype)
        return {"loss": nn.functional.mse_loss(self.engine(x).float(), y)}


def fit(stage: int, micro_batches: int, *, in_background: bool = False, **arguments: Any) -> Trial:
    """The trial, after so many micro-batches in all."""
    with ours.init() as context:
        trial = Trial(context, stage, in_background)
        ours.Trainer(trial, context).fit(
            max_length=pytorch.Batch(micro_batches // ACCUMULATED),
            reporting_period=pytorch.Batch(1),
            **arguments,
        )
    return trial


def of_trials(stage: int) -> dict[str, Any]:
    """A training by the Trainer, and the same in two runs, each way to save."""
    whole = fit(stage, BATCHES)
    found: dict[str, Any] = {
        "losses": whole.losses,
        "reported": [metrics["loss"] for metrics in whole.seen.training],
        "device": str(whole.context.device),
    }
    for in_background in (False, True):
        first = fit(stage, BATCHES - ACCUMULATED, in_background=in_background)
        saved = first.seen.checkpoints[-1]
        rest = fit(stage, BATCHES, latest_checkpoint=saved, in_background=in_background)
        found["in background" if in_background else "at once"] = first.losses + rest.losses
    return found


def main() -> None:
    """Train by the Trainer; and by DeepSpeed alone, which also saves, loads and trains on."""
    stage, folder = int(sys.argv[1]), Path(sys.argv[2])
    if not torch.cuda.is_available():  # a CPU's own helper would be compiled first, for a minute
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    trial = of_trials(stage)  # which connects the ranks, too
    whole = train(engine_of(stage), 0, BATCHES)
    engine = engine_of(stage)
    optimizer = type(engine.basic_optimizer).__name__
    parts = train(engine, 0, BATCHES - ACCUMULATED)
    engine.save_checkpoint(str(folder / "saved"))
    again = engine_of(stage)
    again.load_checkpoint(str(folder / "saved"))
    parts += train(again, BATCHES - ACCUMULATED, BATCHES)
    result = {"trial": trial, "whole": whole, "parts": parts, "optimizer": optimizer}
    result["device"] = str(again.device)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
