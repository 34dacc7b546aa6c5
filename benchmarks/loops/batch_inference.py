"""Batch inference by hand and by `torch_batch_process`: python -m benchmarks.loops.batch_inference.

Prints the milliseconds of a batch, ours and by hand: the best of several rounds of each, in turn.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from detslurm.pytorch.experimental import TorchBatchProcessor, torch_batch_process

WIDTH, BATCH, BATCHES, INTERVAL, ROUNDS = 1024, 256, 50, 50, 6


def network() -> nn.Module:
    """A network whose forward pass takes about 20 ms on one thread."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).eval()


def predicted(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The classes of a batch."""
    with torch.inference_mode():
        found: torch.Tensor = model(batch).argmax(1)
    return found


class Predictions(TorchBatchProcessor):
    """Writes a file for each batch; notes how long the batches took, commits included."""

    began = took = 0.0

    def __init__(self, context: Any) -> None:
        self.context = context
        self.model = context.prepare_model_for_inference(network())
        Predictions.began = time.perf_counter()

    def process_batch(self, batch: torch.Tensor, batch_idx: int) -> None:
        with self.context.upload_path() as path:
            torch.save(
                predicted(self.model, self.context.to_device(batch)), path / f"{batch_idx}.pt"
            )

    def on_finish(self) -> None:
        Predictions.took = time.perf_counter() - Predictions.began


def ours(records: torch.Tensor) -> float:
    """Seconds of all batches."""
    torch_batch_process(Predictions, records, BATCH, checkpoint_interval=INTERVAL)
    return Predictions.took


def by_hand(records: torch.Tensor) -> float:
    """Seconds of all batches, without any way to go on."""
    folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
    model = network()
    began = time.perf_counter()
    for number, batch in enumerate(DataLoader(records, BATCH)):
        torch.save(predicted(model, batch), folder / f"{number}.pt")
    took = time.perf_counter() - began
    shutil.rmtree(folder)
    return took


def main() -> None:
    torch.set_num_threads(1)
    records = torch.randn(BATCH * BATCHES, WIDTH)
    rounds = [(ours(records), by_hand(records)) for _ in range(ROUNDS)]
    best = [1e3 * min(column) / BATCHES for column in zip(*rounds, strict=True)]
    print(f"milliseconds {best[0]:.3f} {best[1]:.3f}")


if __name__ == "__main__":
    main()
