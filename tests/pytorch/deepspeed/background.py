"""Checkpoints that are saved while training goes on: what `ranks` runs of them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from torch import nn

from detslurm import pytorch
from tests.pytorch.deepspeed import trials
from tests.pytorch.deepspeed.scenarios import SAVED, train
from tests.pytorch.deepspeed.settings import config

Make = Callable[..., Any]
PERIOD: dict[str, Any] = {"checkpoint_period": pytorch.Batch([SAVED, SAVED + 2])}


class Held:
    """A trial that saves in the background: files wait until one more batch is trained.

    `write` does something before each file, `train` before each batch.
    """

    def __init__(
        self,
        make: Make,
        write: Callable[[], None] = lambda: None,
        train: Callable[[int], None] = lambda batch: None,
    ) -> None:
        self.make, self.write, self.train = make, write, train
        self.allowed = threading.Event()

    def __call__(self, context: Any, ds_config: Any) -> Any:
        context.experimental.save_in_background()
        trial = self.make(context, ds_config)
        train_batch = trial.train_batch

        def observed(dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == SAVED + 1:
                self.allowed.set()
            self.train(batch_idx)
            return train_batch(dataloader_iter, epoch_idx, batch_idx)

        trial.train_batch = observed
        return trial

    def run(self, ds_config: dict[str, Any], **fit: Any) -> dict[str, Any]:
        """Train; what came of it, and the error that ended it."""
        save = TorchCheckpointEngine.save

        def held(engine: Any, state_dict: Any, path: str) -> None:
            assert self.allowed.wait(60)
            self.write()
            save(engine, state_dict, path)

        TorchCheckpointEngine.save = held
        try:
            return train(self, ds_config, **PERIOD, **fit)
        except Exception as err:
            return {"error": f"{type(err).__name__}: {err}"}
        finally:
            TorchCheckpointEngine.save = save


def folder_of(uuid: str) -> Path:
    """The files of a checkpoint."""
    return Path(os.environ["DETSLURM_ROOT"]) / "checkpoints" / uuid


def partial_ones() -> list[str]:
    """What is left of checkpoints that were not completed."""
    return [path.name for path in folder_of("").glob("*.partial")]


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two states differ, to the bit."""
    if type(one) is not type(other):
        return [at]
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [at]
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [at]
        return [d for key in one for d in differences(one[key], other[key], f"{at}/{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [at]
        return [d for i, v in enumerate(one) for d in differences(v, other[i], f"{at}/{i}")]
    if hasattr(one, "__dict__") and not isinstance(one, type):
        return differences(vars(one), vars(other), at)
    return [] if one == other else [at]


def unlike(one: str, other: str) -> list[str]:
    """Where the files of engines in two checkpoints differ."""
    names = [
        sorted(str(file.relative_to(folder_of(uuid))) for file in folder_of(uuid).rglob("*.p*"))
        for uuid in (one, other)
    ]
    if names[0] != names[1]:
        return [str(names)]
    load = partial(torch.load, map_location="cpu", weights_only=False)
    return [
        at
        for name in names[0]
        if name.endswith(".pt")
        for at in differences(load(folder_of(one) / name), load(folder_of(other) / name), name)
    ]


class Tied(trials.Zero):
    """Uses a layer twice; of sizes that two ranks divide: DeepSpeed fills up others with what is in
    memory."""

    @staticmethod
    def network() -> nn.Sequential:
        torch.manual_seed(1)
        twice = nn.Linear(16, 16)
        last = nn.Linear(16, 1, bias=False)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), twice, nn.Tanh(), twice, nn.Tanh(), last)


def offloaded(stage: int) -> dict[str, Any]:
    """A configuration with the optimizer in the memory of the host."""
    made = config(stage, "bf16")
    made["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    return made | {"zero_force_ds_cpu_optimizer": False}


KINDS: dict[str, tuple[Make, dict[str, Any]]] = {
    "no zero": (Tied, config(0)),
    "zero 1": (Tied, config(1)),
    "zero 2, offloaded": (Tied, offloaded(2)),
    "zero 3, bfloat16": (Tied, config(3, "bf16")),
    "two engines": (trials.Adversaries, config(1)),
    "pipeline": (trials.Pipeline, config(1, "bf16")),
}


def compared(make: Make, ds_config: dict[str, Any]) -> dict[str, Any]:
    """The same training saved in the foreground, in the background, and taken up from there."""
    waited = train(make, ds_config, **PERIOD)
    went_on = Held(make).run(ds_config)
    first = went_on["checkpoints"][0]
    again = train(make, ds_config, latest_checkpoint=first)
    pairs = list(zip(waited["checkpoints"], went_on["checkpoints"], strict=True))
    return {
        "unlike": [at for pair in pairs for at in unlike(*pair)],
        "modes": sorted({oct(f.stat().st_mode & 0o022) for f in folder_of(first).rglob("*.pt")}),
        "runs": [
            [one["losses"][-len(again["losses"]) :], one["validation"][-1:], one["training"][-1]]
            for one in (waited, went_on, again)
        ],
        "checkpoints": len(pairs),
    }


def failing_once(error: Exception) -> Callable[[], None]:
    """What fails before the first file of rank 1."""
    errors = [error] if os.environ["RANK"] == "1" else []

    def write() -> None:
        if errors:
            raise errors.pop()

    return write


def going_wrong() -> dict[str, Any]:
    """A file that can't be written on one rank, and a mistake while files are not written yet."""

    def mistake(batch: int) -> None:
        if batch == SAVED:
            threading.Timer(0.1, mistaken.allowed.set).start()
            raise KeyError("a mistake")

    broken = Held(trials.Zero, failing_once(KeyError("a broken writer")))
    full = Held(trials.Zero, failing_once(OSError(errno.ENOSPC, "no space")))
    mistaken = Held(trials.Zero, train=mistake)
    found: dict[str, Any] = {
        "broken writer": broken.run(config(2)),
        "full disk": full.run(config(2)),
        "mistake": mistaken.run(config(2)),
    }
    torch.distributed.barrier()
    return found | {"left": partial_ones()}


def everything() -> dict[str, Any]:
    """Every kind of engine, and what can go wrong."""
    found = going_wrong()  # first: engines after a pipeline can't do without its grid
    return found | {name: compared(*kind) for name, kind in KINDS.items()}
