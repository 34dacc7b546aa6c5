"""The loop written by hand; it, too, averages the loss and looks at it now and then."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader

from benchmarks.loops import task
from benchmarks.training import BY_HAND


def turns() -> Iterator[None]:
    """Train, a turn at each step."""
    size, watch = task.size(), task.Stopwatch()
    model = task.network(size)
    optimizer = task.optimizer(model)
    losses = []
    for batch in DataLoader(task.data(size), batch_size=size.records, shuffle=True):
        watch.mark()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if len(losses) == task.PERIOD:
            torch.stack(losses).mean().item()
            losses.clear()
        if watch.is_turn_over:
            with watch.paused():
                yield
    watch.report(BY_HAND)
