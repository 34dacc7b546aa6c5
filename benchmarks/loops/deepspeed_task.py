"""DeepSpeed's engine of the task: on CPUs, with the optimizer of the other loops."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch.distributed as torch_dist

from benchmarks.loops import task

ACCUMULATED = 2
"""Micro-batches of a batch: both kinds, with a step and without, are measured."""


def connect() -> None:
    """What DeepSpeed wants of a launcher, for this process alone."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if not torch_dist.is_initialized():
        torch_dist.init_process_group("gloo", store=torch_dist.HashStore(), rank=0, world_size=1)


def engine(size: task.Size) -> Any:
    """An engine for the task, without ZeRO: least of DeepSpeed's own time is in the figures."""
    model = task.network(size)
    # Else DeepSpeed compiles a collective of its own, in each process.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = {
        "train_micro_batch_size_per_gpu": size.records,
        "gradient_accumulation_steps": ACCUMULATED,
        "steps_per_print": 10**9,
    }
    return deepspeed.initialize(model=model, optimizer=task.optimizer(model), config=config)[0]


def micro_batch(of: Any, batch: Any) -> Any:
    """Train on one micro-batch, as both loops do; its loss."""
    loss = task.loss(of, batch)
    of.backward(loss)
    of.step()
    return loss
