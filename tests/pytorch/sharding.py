"""A model that `fully_shard()` splits up: python -m tests.pytorch.sharding SCENARIO FOLDER."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from detslurm import pytorch
from detslurm.errors import InvalidExperimentException
from tests.pytorch.ranks import Plain
from tests.pytorch.trials import numbers

RECORDS = 8
"""In a batch, over all ranks: their number makes no difference but for the last bits."""


class Sharded(Plain):
    """Split up over the ranks if there are several; Adam keeps two numbers a weight."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context, RECORDS // context.distributed.size)
        context.models.clear()
        context.optimizers.clear()
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        self.model = context.wrap_model(self.split(net))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))

    def split(self, net: Any) -> nn.Module:
        if self.context.distributed.size > 1:
            for layer in (net[0], net[2], net):  # net[2] has one row: most ranks have none of it
                fully_shard(layer)
        return net


class Replicated(Sharded):
    """The same on DDP."""

    def split(self, net: Any) -> nn.Module:
        return net


class Losses(pytorch.PyTorchCallback):
    """Keeps what is reported, and the latest checkpoint; the first ones find the disk full."""

    def __init__(self, full_disks: int) -> None:
        self.full_disks = full_disks
        self.losses: list[float] = []
        self.validations: list[float] = []
        self.checkpoint = ""
        self.checkpoints: list[str] = []

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        self.losses.append(avg_metrics["loss"])

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validations.append(metrics["mean_square"])

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        if self.full_disks:
            self.full_disks -= 1
            raise OSError(errno.ENOSPC, "no space")

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.checkpoint = uuid
        self.checkpoints.append(uuid)


def train(
    batches: int,
    checkpoint: str | None = None,
    aggregation: int = 1,
    kind: type[Sharded] = Sharded,
    full_disks: int = 0,
    **fit: Any,
) -> dict[str, Any]:
    """Train to so many batches; losses, weights and the checkpoint."""
    seen = Losses(full_disks)
    with pytorch.init(aggregation_frequency=aggregation) as context:
        trial = kind(context)
        trial.build_callbacks = lambda: {"seen": seen}  # type: ignore[method-assign]
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(batches),
            reporting_period=pytorch.Batch(1),
            checkpoint_policy="none",
            latest_checkpoint=checkpoint,
            validation_period=pytorch.Batch([3, 7]),
            **fit,
        )
        weights = [whole(p).flatten().tolist() for p in trial.model.parameters()]
    kept = {name: value for name, value in vars(seen).items() if name != "full_disks"}
    return kept | {"weights": weights}


def whole(parameter: Any) -> torch.Tensor:
    """A weight as one tensor."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def four() -> dict[str, Any]:
    """The first batches, on any number of ranks."""
    return train(5, aggregation=2)


def two() -> dict[str, Any]:
    """Going on from others' checkpoints; and from its own, with and without an interruption."""
    found = {
        "on": train(9, os.environ["CHECKPOINT"], aggregation=2),
        "from_plain": train(9, os.environ["PLAIN"], aggregation=2),
        "uninterrupted": train(8, aggregation=2),
        "interrupted": train(5, aggregation=2),
        "full": train(3, full_disks=1, checkpoint_period=pytorch.Batch(2)),
    }
    found["resumed"] = train(8, found["interrupted"]["checkpoint"], aggregation=2)
    found["replicated"] = train(9, os.environ["CHECKPOINT"], 2, Replicated)
    return found


class InBackground(Replicated):
    """Trains on while the chief writes."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        context.experimental.save_in_background()


def background() -> dict[str, Any]:
    """Checkpoints in the background, also between two steps of the optimizer."""
    every: dict[str, Any] = {"checkpoint_period": pytorch.Batch(3)}
    whole = train(10, None, 2, InBackground, **every)
    resumed = [train(10, uuid, 2, Replicated) for uuid in whole["checkpoints"][:3]]
    return {"whole": whole, "resumed": resumed}


class AtOnce(Sharded):
    """Evaluates on the chief alone."""

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {}


class TooFew(Sharded):
    """Has one batch to validate on."""

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(4), batch_size=4)


def refused() -> dict[str, str]:
    """What is said of these two."""
    return {"at_once": failure(AtOnce), "too_few": failure(TooFew)}


def failure(kind: type[Sharded]) -> str:
    """Why a trial could not be trained."""
    try:
        train(1, kind=kind)
    except (ValueError, InvalidExperimentException) as err:
        return str(err)
    return ""


def main() -> None:
    """Run a scenario and write what it returns."""
    result = globals()[sys.argv[1]]()
    (Path(sys.argv[2]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
