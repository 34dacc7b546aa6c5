"""The project of a test: a DeepSpeedTrial with ZeRO-2 whose runs are disturbed."""

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
from detslurm.core._preempt import attach_flag
from detslurm.pytorch.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 9, "warmup_max_lr": 0.01}},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 10**9,
}


class Trial(DeepSpeedTrial):
    """The first run waits to be preempted; in the second one rank dies while all save."""

    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        layers = [nn.Linear(8, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1)]
        net = nn.Sequential(*layers)
        engine, *_ = deepspeed.initialize(
            model=net, model_parameters=net.parameters(), config=CONFIG
        )
        self.engine = context.wrap_model_engine(engine)
        info = det.get_cluster_info()
        assert info is not None
        self.run = info.trial._trial_run_id if context.get_hparam("disturbed") else 0
        flag = attach_flag()
        assert flag is not None
        self.flag = flag

    def loss(self, batches: Iterator[Any]) -> torch.Tensor:
        x, y = self.context.to_device(next(batches))
        return nn.functional.mse_loss(self.engine(x), y)

    def train_batch(self, dataloader_iter: Any, epoch_idx: int, batch_idx: int) -> Any:
        while self.run == 1 and batch_idx == 6 and not self.flag.preempt:
            time.sleep(0.05)
        loss = self.loss(dataloader_iter)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(self, dataloader_iter: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": self.loss(dataloader_iter)}

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        if (self.run, self.engine.global_steps, self.engine.global_rank) == (2, 15, 3):
            self.engine.checkpoint_engine.save = half_of_it
        super().save(context, path)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return data(104, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return data(36, shuffle=False)


def data(size: int, *, shuffle: bool) -> pytorch.DataLoader:
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(size, 8, generator=numbers)
    pairs = torch.utils.data.TensorDataset(x, x.prod(1, keepdim=True))
    return pytorch.DataLoader(pairs, batch_size=4, shuffle=shuffle)


def half_of_it(state_dict: Any, path: str) -> None:
    """What is on the disk of a file when its writer is killed."""
    torch.save(state_dict, path)
    os.truncate(path, Path(path).stat().st_size // 2)
    os.kill(os.getpid(), signal.SIGKILL)
