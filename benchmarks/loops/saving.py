"""A trial that is saved after every batch: python -m benchmarks.loops.saving foreground|background.

Prints the milliseconds that a checkpoint holds training up, then those of the same states saved by
hand; in the background these are not measured, and batches take long enough to write one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detslurm import pytorch

WIDTH, LAYERS, SAVES = 2048, 8, 3
"""128 MB of weights and as much momentum."""


def network() -> nn.Sequential:
    """What is saved; on one thread."""
    torch.set_num_threads(1)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """With momentum, and steps that change next to nothing."""
    return torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)


class Trial(pytorch.PyTorchTrial):
    """A network whose steps cost next to nothing beside saving it."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.in_background = sys.argv[1] == "background"
        if self.in_background:
            context.experimental.save_in_background()
        self.model = context.wrap_model(network())
        self.optimizer = context.wrap_optimizer(optimizer(self.model))
        self.done: list[float] = []
        self.held: list[float] = []
        self.by_hand: list[float] = []

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.zeros(SAVES + 1, WIDTH), batch_size=1)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.zeros(1, 1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if self.done:
            self.held.append(time.perf_counter() - self.done[-1])
        loss = self.model(batch).sum()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.by_hand.append(wait() if self.in_background else self.save_by_hand())
        self.done.append(time.perf_counter())
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, float]:
        return {"loss": 0.0}

    def save_by_hand(self) -> float:
        """Seconds to write the states to one file and sync it and its directory."""
        folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
        began = time.perf_counter()
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, folder / "state.pth")  # faster than to an open file
        for written in (folder / "state.pth", folder):
            handle = os.open(written, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        spent = time.perf_counter() - began
        shutil.rmtree(folder)
        return spent


def wait() -> float:
    """Train, for the writing to end beside; 0."""
    time.sleep(2.0)
    return 0.0


def fit(trainer: Any) -> None:
    """Train, and save after every batch."""
    trainer.fit(
        max_length=pytorch.Batch(SAVES + 1),
        checkpoint_period=pytorch.Batch(1),
        checkpoint_policy="none",
    )


def main() -> None:
    with pytorch.init(hparams={}) as context:
        trial = Trial(context)
        fit(pytorch.Trainer(trial, context))
    print(f"milliseconds {1e3 * min(trial.held):.1f} {1e3 * min(trial.by_hand):.1f}")


if __name__ == "__main__":
    main()
