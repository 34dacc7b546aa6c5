"""What `tests.pytorch.deepspeed.ranks` runs on several ranks."""

from __future__ import annotations

import errno
import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as torch_dist
from deepspeed.runtime.lr_schedules import WarmupLR

from detslurm import pytorch
from detslurm.pytorch import deepspeed as ours
from tests.pytorch.deepspeed import trials
from tests.pytorch.deepspeed.settings import MICRO, config
from tests.pytorch.ranks import Seen
from tests.pytorch.trials import numbers

BATCHES, SAVED = 6, 3


def train(
    make: Callable[..., Any], ds_config: dict[str, Any], batches: int = BATCHES, **fit: Any
) -> dict[str, Any]:
    """Train; what came of it."""
    seen = Seen()
    with ours.init() as context:
        trial = make(context, ds_config)
        trial.build_callbacks = lambda: {"seen": seen}
        fit.setdefault("reporting_period", pytorch.Batch(1))
        fit.setdefault("checkpoint_policy", "none")
        ours.Trainer(trial, context).fit(max_length=pytorch.Batch(batches), **fit)
    return {
        "losses": getattr(trial, "losses", []),
        "calls": getattr(trial, "calls", []),
        "training": seen.training,
        "validation": seen.validation,
        "checkpoints": seen.checkpoints,
    }


def plain(ds_config: dict[str, Any], batches: int = BATCHES) -> list[float]:
    """The losses of DeepSpeed's own loop, over the same micro-batches."""
    engine = trials.engine_of(trials.network(), ds_config)
    losses = []
    for batch in itertools.islice(micro_batches(), batches * engine.gradient_accumulation_steps()):
        loss = trials.loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def plain_pipeline(ds_config: dict[str, Any], stages: int, batches: int = BATCHES) -> list[float]:
    """The losses of a pipeline by DeepSpeed alone."""
    engine = trials.staged(stages, ds_config)
    own = micro_batches(
        engine.mpu.get_data_parallel_rank(), engine.mpu.get_data_parallel_world_size()
    )
    return [engine.train_batch(own).item() for _ in range(batches)]


def micro_batches(rank: int | None = None, size: int | None = None) -> Any:
    """This rank's micro-batches, without an end."""
    x, y = numbers(48).tensors
    rank = torch_dist.get_rank() if rank is None else rank
    size = torch_dist.get_world_size() if size is None else size
    count = len(x) // MICRO
    for number in itertools.count(rank, size):
        part = slice(number % count * MICRO, (number % count + 1) * MICRO)
        yield x[part], y[part]


def resumed(make: Callable[..., Any], ds_config: dict[str, Any]) -> dict[str, Any]:
    """A training in two runs, the second from the first's checkpoint."""
    first = train(make, ds_config, SAVED)
    second = train(make, ds_config, latest_checkpoint=first["checkpoints"][-1])
    return {"losses": first["losses"] + second["losses"], "validation": second["validation"]}


def compared(ds_config: dict[str, Any], stages: int = 0) -> dict[str, Any]:
    """The same training by the Trainer, by DeepSpeed alone, and in two runs; also of a pipeline."""
    make = trials.Pipeline if stages else trials.Zero
    return {
        "trainer": train(make, ds_config),
        "plain": plain_pipeline(ds_config, stages) if stages else plain(ds_config),
        "resumed": resumed(make, ds_config),
    }


KINDS = [(stage, "fp32") for stage in range(4)] + [(stage, "bf16") for stage in (1, 2, 3)]


def without_deepspeed(clip: float, rows: int = 2 * 2 * MICRO) -> list[float]:
    """The losses of torch alone, in one process, of batches of all ranks' micro-batches."""
    model = trials.network()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = WarmupLR(optimizer, warmup_max_lr=0.01, warmup_num_steps=6)
    x, y = numbers(48).tensors
    losses = []
    for number in range(BATCHES):
        part = slice(number * rows % len(x), number * rows % len(x) + rows)
        loss = torch.nn.functional.mse_loss(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def others() -> dict[str, Any]:
    """Accumulation by hand, two engines, and ranks that divide reading and reporting."""
    ds_config = config(1)
    found: dict[str, Any] = {
        "automatic": train(trials.Zero, ds_config),
        "by hand": train(trials.ByHand, ds_config),
        "divided": train(trials.Divided, ds_config),
        "adversaries": train(trials.Adversaries, ds_config, 4, validation_period=pytorch.Batch(2)),
        "adversaries in one": train(trials.Adversaries, ds_config),
        "adversaries again": resumed(trials.Adversaries, ds_config),
    }
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("detslurm.pytorch").addHandler(handler)
    train(trials.Idle, ds_config, 3)
    found["idle"] = said
    for wrong in (1, -1):
        try:
            train(partial(trials.ByHand, wrong=wrong), ds_config)
        except AssertionError as err:
            found[f"wrong by {wrong}"] = str(err)
    return found


def two_ranks() -> dict[str, Any]:
    """Every stage of ZeRO: by the Trainer, by hand, and in two runs; other trials."""
    found: dict[str, Any] = {"without": without_deepspeed(clip=1.0), **others()}
    for stage, dtype in KINDS:
        found[f"{stage} {dtype}"] = compared(config(stage, dtype))
    return found | {"by mesh": by_mesh()}  # last: DeepSpeed keeps the mesh for later engines


def by_mesh() -> list[dict[str, Any]]:
    """The place of this rank where all ranks, and where none, share a sequence."""
    found = []
    for shape in ((1, 2), (2, 1)):
        with ours.init() as context:
            model = trials.network()
            engine = deepspeed.initialize(
                model=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                config={"train_micro_batch_size_per_gpu": MICRO},
                mesh_param=shape,
            )[0]
            context.wrap_model_engine(engine)
            found.append(asdict(context._place))
    return found


def pipelines() -> dict[str, Any]:
    """Two stages, on as many replicas as there are ranks for."""
    found: dict[str, Any] = {"without": without_deepspeed(clip=math.inf)}
    for stage, dtype in ((0, "fp32"), (1, "fp32"), (1, "bf16")):
        found[f"{stage} {dtype}"] = compared(config(stage, dtype), stages=2)
    return found


def full_disk() -> dict[str, Any]:
    """One rank finds no space for its part of a checkpoint; the other waits for it in DeepSpeed."""

    class Full(trials.Zero):
        def save(self, context: Any, path: Any) -> None:
            if context.distributed.rank == 1:
                raise OSError(errno.ENOSPC, "no space left")
            super().save(context, path)

    return train(Full, config(1), 2)
