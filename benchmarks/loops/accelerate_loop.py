"""Accelerate: the loop is one's own, with its wrappers in it."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from benchmarks.loops import plain, task


def main() -> None:
    size, watch = task.size(), task.Stopwatch(plain.turns())
    accelerator = Accelerator(cpu=True)
    model = task.network(size)
    loader = DataLoader(task.data(size), batch_size=size.records, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, task.optimizer(model), loader)
    losses = []
    for batch in loader:
        watch.mark()
        loss = task.loss(model, batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if len(losses) == task.PERIOD:
            torch.stack(losses).mean().item()
            losses.clear()
    watch.report()


if __name__ == "__main__":
    task.train_when_asked(main)
