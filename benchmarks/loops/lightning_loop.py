"""Lightning's Trainer, with everything off that one can do without."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning
from torch.utils.data import DataLoader

from benchmarks.loops import plain, task


class Module(lightning.LightningModule):  # type: ignore[misc]
    """The task; its loss is averaged, and looked at after every period."""

    def __init__(self, size: task.Size) -> None:
        super().__init__()
        self.size, self.watch = size, task.Stopwatch(plain.turns())
        self.model = task.network(size)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.watch.mark()
        loss = task.loss(self.model, batch)
        self.log("loss", loss, on_step=False, on_epoch=True, batch_size=self.size.records)
        return loss

    def configure_optimizers(self) -> Any:
        return task.optimizer(self.model)


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    size = task.size()
    module = Module(size)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        log_every_n_steps=task.PERIOD,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(task.data(size), batch_size=size.records, shuffle=True)
    trainer.fit(module, loader)
    module.watch.report()


if __name__ == "__main__":
    task.train_when_asked(main)
