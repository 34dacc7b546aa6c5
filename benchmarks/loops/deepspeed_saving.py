"""The same as a DeepSpeedTrial that saves in the background."""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed as theirs
import torch

from benchmarks.loops import saving
from detslurm import pytorch
from detslurm.pytorch import deepspeed


class Trial(deepspeed.DeepSpeedTrial):
    """The network on one engine, without ZeRO."""

    def __init__(self, context: deepspeed.DeepSpeedTrialContext) -> None:
        context.experimental.save_in_background()
        model = saving.network()
        config = {"train_batch_size": 1, "steps_per_print": 10**9}
        engine, *_ = theirs.initialize(
            model=model, optimizer=saving.optimizer(model), config=config
        )
        self.engine = context.wrap_model_engine(engine)
        self.done: list[float] = []
        self.held: list[float] = []

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.zeros(saving.SAVES + 1, saving.WIDTH), batch_size=1)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(torch.zeros(1, 1))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if self.done:
            self.held.append(time.perf_counter() - self.done[-1])
        loss = self.engine(next(dataloader_iter)).sum()
        self.engine.backward(loss)
        self.engine.step()
        saving.wait()
        self.done.append(time.perf_counter())
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, float]:
        return {"loss": 0.0}


def main() -> None:
    with deepspeed.init(hparams={}) as context:
        trial = Trial(context)
        saving.fit(deepspeed.Trainer(trial, context))
    print(f"milliseconds {1e3 * min(trial.held):.1f} 0.0")


if __name__ == "__main__":
    main()
