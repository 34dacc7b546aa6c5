"""The same as a DeepSpeedTrial."""

from __future__ import annotations

from typing import Any

from benchmarks.loops import deepspeed_task, task
from detslurm import pytorch
from detslurm.pytorch import deepspeed


class Trial(deepspeed.DeepSpeedTrial):
    """The task on one engine."""

    def __init__(self, context: deepspeed.DeepSpeedTrialContext) -> None:
        self.size, self.watch = task.size(), task.Stopwatch()
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
    task.train_when_asked(main)
