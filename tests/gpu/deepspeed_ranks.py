"""Plain DeepSpeed on one of several ranks: python -m tests.gpu.deepspeed_ranks STAGE FOLDER."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from tests.pytorch.trials import numbers

BATCHES = 6


def configuration(stage: int, *, gpu: bool) -> dict[str, Any]:
    """Adam as DeepSpeed makes it: one fused kernel on a GPU. Stage 0 has no bfloat16 engine that
    every version can load again."""
    parameters = {"lr": 0.01} if gpu else {"lr": 0.01, "torch_adam": True}
    return {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": parameters},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": stage > 0},
    }


def engine_of(stage: int) -> Any:
    """A new engine, the same each time."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    config = configuration(stage, gpu=torch.cuda.is_available())
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    return engine


def train(engine: Any, first: int, last: int) -> list[float]:
    """The losses of this rank's batches."""
    x, y = (part.to(engine.device) for part in numbers(16 * engine.world_size).tensors)
    own = slice(16 * engine.global_rank, 16 * engine.global_rank + 16)
    dtype = next(engine.module.parameters()).dtype
    losses = []
    for index in range(first, last):
        half = slice(own.start + index % 2 * 8, own.start + index % 2 * 8 + 8)
        loss = nn.functional.mse_loss(engine(x[half].to(dtype)).float(), y[half])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train; and train, save, load into a new engine, and train on."""
    stage, folder = int(sys.argv[1]), Path(sys.argv[2])
    if not torch.cuda.is_available():  # a CPU's own helper would be compiled first, for a minute
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed()
    whole = train(engine_of(stage), 0, BATCHES)
    engine = engine_of(stage)
    optimizer = type(engine.basic_optimizer).__name__
    parts = train(engine, 0, BATCHES - 2)
    engine.save_checkpoint(str(folder / "saved"))
    again = engine_of(stage)
    again.load_checkpoint(str(folder / "saved"))
    parts += train(again, BATCHES - 2, BATCHES)
    result = {"whole": whole, "parts": parts, "optimizer": optimizer, "device": str(again.device)}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
