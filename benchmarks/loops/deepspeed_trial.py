"""A DeepSpeedTrial; the last argument chooses whose Trainer trains it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.loops import deepspeed_plain, deepspeed_task, task

pytorch = import_module(f"{sys.argv[2]}.pytorch")
deepspeed = import_module(f"{sys.argv[2]}.pytorch.deepspeed")


class Trial(deepspeed.DeepSpeedTrial):  # type: ignore[misc, name-defined]
    """The task on one engine, as both have it."""

    def __init__(self, context: Any) -> None:
        self.size, self.watch = task.size(), task.Stopwatch(deepspeed_plain.turns())
        self.engine = context.wrap_model_engine(deepspeed_task.engine(self.size))

    def build_training_data_loader(self) -> Any:
        data = task.data(self.size)
        return pytorch.DataLoader(data, batch_size=self.size.records, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(range(1))

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.watch.mark()
        return {"loss": deepspeed_task.micro_batch(self.engine, next(dataloader_iter))}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, float]:
        return {"loss": 0.0}


def let_determined_use_the_cpu() -> None:
    """Determined's context refuses to choose a device where there is no GPU; nothing else of it
    asks for one."""
    context = deepspeed.DeepSpeedTrialContext
    context._init_device = lambda self: setattr(self, "device", torch.device("cpu"))
    deepspeed_task.connect()


def main() -> None:
    with deepspeed.init(hparams={}, exp_conf={}) as context:
        trial = Trial(context)
        deepspeed.Trainer(trial, context).fit(
            max_length=pytorch.Batch(task.BATCHES // deepspeed_task.ACCUMULATED),
            reporting_period=pytorch.Batch(task.PERIOD // deepspeed_task.ACCUMULATED),
            checkpoint_policy="none",
        )
        trial.watch.report()


if __name__ == "__main__":
    if sys.argv[2] == "determined":
        let_determined_use_the_cpu()
    task.train_when_asked(main)
