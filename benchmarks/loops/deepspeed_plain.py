"""DeepSpeed's loop written by hand; it, too, averages the loss and looks at it now and then."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader

from benchmarks.loops import deepspeed_task, task
from benchmarks.training import BY_HAND


def turns() -> Iterator[None]:
    """Train, a turn at each step."""
    size, watch = task.size(), task.Stopwatch()
    deepspeed_task.connect()
    engine = deepspeed_task.engine(size)
    losses = []
    for batch in DataLoader(task.data(size), batch_size=size.records, shuffle=True):
        watch.mark()
        losses.append(deepspeed_task.micro_batch(engine, batch).detach())
        if len(losses) == task.PERIOD:
            torch.stack(losses).mean().item()
            losses.clear()
        if watch.is_turn_over:
            with watch.paused():
                yield
    watch.report(BY_HAND)
