"""The project of a test: a DeepSpeedTrial with ZeRO 1 to 3 whose runs are disturbed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

import detslurm as det
from detslurm import pytorch
from detslurm._base.flag import PreemptFlag
from detslurm.pytorch.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext


def config(stage: int) -> dict[str, Any]:
    return {
        "train_batch_size": 32,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9}},
        "steps_per_print": 10**9,
    }


class Trial(DeepSpeedTrial):
    """Three engines. Those with ZeRO-1 and 3 learn the same records on all slots in every step,
    whatever the slots are; that with ZeRO-2 learns the data, with dropout.

    The first run waits to be preempted, and so does what writes its first checkpoint in the
    background; in the second one rank dies while it writes one, when all have gone on.
    """

    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.engines = [self.engine(stage) for stage in (1, 2, 3)]
        info = det.get_cluster_info()
        assert info is not None
        self.run = info.trial._trial_run_id if context.get_hparam("disturbed") else 0
        flag = PreemptFlag.of_this_node()
        assert flag is not None
        self.flag = flag
        self.saved_at = 0
        if self.run in (1, 2):
            context.experimental.save_in_background()
            self.engines[1].checkpoint_engine.save = self.write

    def engine(self, stage: int) -> Any:
        # Sizes that two ranks divide: DeepSpeed would fill up others with what is in memory.
        layers = [nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1, bias=False)]
        net = nn.Sequential(*layers, *([nn.Dropout(0.2)] if stage == 2 else []))
        net[0].bias.requires_grad_(False)
        trained = [p for p in net.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(model=net, model_parameters=trained, config=config(stage))
        return self.context.wrap_model_engine(engine)

    def losses(self, batches: Iterator[Any]) -> list[torch.Tensor]:
        same = made_up(8).tensors
        data = (same, self.context.to_device(next(batches)), same)
        pairs = zip(self.engines, data, strict=True)
        return [nn.functional.mse_loss(engine(x), y) for engine, (x, y) in pairs]

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        while self.run == 1 and batch_idx == 6 and not self.flag.preempt:
            time.sleep(0.05)
        losses = self.losses(dataloader_iter)
        for engine, loss in zip(self.engines, losses, strict=True):
            engine.backward(loss)
            engine.step()
        return named(losses)

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        return named(self.losses(dataloader_iter))

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        self.saved_at = self.engines[1].global_steps
        super().save(context, path)

    def write(self, state_dict: Any, path: str) -> None:
        engine = self.engines[1]
        while self.run == 1 and not self.flag.preempt:
            time.sleep(0.05)
        if (self.run, self.saved_at, engine.global_rank) == (2, 15, 1):
            while engine.global_steps < 17:
                time.sleep(0.05)
            half_of_it(state_dict, path)
        torch.save(state_dict, path)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return self.data(104, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return self.data(36, shuffle=False)

    def data(self, size: int, *, shuffle: bool) -> pytorch.DataLoader:
        each = self.context.get_train_micro_batch_size_per_gpu()
        return pytorch.DataLoader(made_up(size), batch_size=each, shuffle=shuffle)


def named(losses: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"zero{stage}": loss for stage, loss in enumerate(losses, 1)}


def made_up(size: int) -> torch.utils.data.TensorDataset:
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(size, 8, generator=numbers)
    return torch.utils.data.TensorDataset(x, x.prod(1, keepdim=True))


def half_of_it(state_dict: Any, path: str) -> None:
    """What is on the disk of a file when its writer is killed."""
    torch.save(state_dict, path)
    os.truncate(path, Path(path).stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)
