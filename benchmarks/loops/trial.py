"""A PyTorchTrial; the last argument chooses whose Trainer trains it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from benchmarks.loops import plain, task

pytorch = import_module(f"{sys.argv[2]}.pytorch")


class Trial(pytorch.PyTorchTrial):  # type: ignore[misc, name-defined]
    """The task, as both have it."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.size, self.watch = task.size(), task.Stopwatch(plain.turns())
        self.model = context.wrap_model(task.network(self.size))
        self.optimizer = context.wrap_optimizer(task.optimizer(self.model))

    def build_training_data_loader(self) -> Any:
        data = task.data(self.size)
        return pytorch.DataLoader(data, batch_size=self.size.records, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(range(1))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        self.watch.mark()
        loss = task.loss(self.model, batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, float]:
        return {"loss": 0.0}


def main() -> None:
    with pytorch.init(hparams={}, exp_conf={}) as context:
        trial = Trial(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Batch(task.BATCHES),
            reporting_period=pytorch.Batch(task.PERIOD),
            checkpoint_policy="none",
        )
        trial.watch.report()


if __name__ == "__main__":
    task.train_when_asked(main)
