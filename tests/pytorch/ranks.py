"""One of several ranks: python -m tests.pytorch.ranks SCENARIO FOLDER, by any launcher."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from detslurm import pytorch
from tests.pytorch.trials import numbers


class Plain(pytorch.PyTorchTrial):
    """A regression without random numbers; any split of its batches gives the same results."""

    def __init__(self, context: pytorch.PyTorchTrialContext, batch_size: int = 4) -> None:
        self.context, self.batch_size = context, batch_size
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
        self.model = context.wrap_model(net)
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        )
        self.squares = context.wrap_reducer(self.mean_square, "mean_square")
        self.synced: list[bool] = []

    @staticmethod
    def mean_square(values: list[Any]) -> Any:
        return sum(value for value, _ in values) / sum(count for _, count in values)

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = (part.double() for part in batch)
        error = self.model(x) - y
        self.squares.update((float(error.detach().square().sum()), len(x)))  # type: ignore[attr-defined]
        return error.square().mean()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.synced.append(getattr(self.model, "require_backward_grad_sync", True))
        loss = self.loss(batch)
        self.own = loss.item()
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda p: nn.utils.clip_grad_norm_(p, 1.0)
        )
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"loss": self.loss(batch)}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(48), batch_size=self.batch_size)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(numbers(20), batch_size=4)  # 5 batches: 3 and 2


class Seen(pytorch.PyTorchCallback):
    """Keeps the metrics that callbacks are given; the first checkpoints find the disk full."""

    def __init__(self, full_disks: int = 0) -> None:
        self.full_disks = full_disks
        self.training: list[dict[str, Any]] = []
        self.validation: list[dict[str, Any]] = []
        self.checkpoints: list[str] = []
        self.begun = 0

    def on_training_workload_end(self, avg_metrics: Any, batch_metrics: Any) -> None:
        # More ranks do more in a batch: what counts batches differs.
        own = {k: v for k, v in avg_metrics.items() if k not in ("batches", "epochs")}
        self.training.append(own)

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validation.append({k: np.asarray(v).tolist() for k, v in metrics.items()})

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        self.begun += 1

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        if self.full_disks:
            self.full_disks -= 1
            raise OSError(errno.ENOSPC, "no space")

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.checkpoints.append(uuid)


def train(
    aggregation: int,
    batches: int,
    make: Callable[..., Any] = Plain,
    full_disks: int = 0,
    **fit: Any,
) -> dict[str, Any]:
    """Train; what came of it."""
    seen = Seen(full_disks)
    with pytorch.init(aggregation_frequency=aggregation) as context:
        trial = make(context)
        trial.build_callbacks = lambda: {"seen": seen}
        fit.setdefault("reporting_period", pytorch.Batch(aggregation))
        fit.setdefault("checkpoint_policy", "none")
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), **fit)
    weights = [p.flatten().tolist() for p in trial.model.parameters()]
    return {
        "weights": weights,
        "training": seen.training,
        "validation": seen.validation,
        "synced": trial.synced,
        "checkpoints": seen.checkpoints,
        "begun": seen.begun,
    }


def main() -> None:
    """Run a scenario of `tests.pytorch.scenarios` and write what it returns."""
    from tests.pytorch import scenarios

    result = getattr(scenarios, sys.argv[1])()
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK")
    rank = next(os.environ[name] for name in names if name in os.environ)
    text = json.dumps(result, default=lambda array: array.tolist())
    (Path(sys.argv[2]) / f"rank{rank}.json").write_text(text)


if __name__ == "__main__":
    main()
