"""The Trainer computes what a loop by hand computes, and so does a trial that was interrupted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detslurm as det
from detslurm import pytorch
from detslurm._base.flag import PreemptFlag
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, network, numbers


def by_hand(batches: int, aggregation: int) -> list[float]:
    """The losses of the same training in plain PyTorch."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    x_all, y_all = numbers().tensors
    torch.empty((), dtype=torch.int64).random_()  # as every iterator of a torch DataLoader does
    losses = []
    for index in range(batches):
        start = index * 4 % len(x_all)
        x, y = x_all[start : start + 4], y_all[start : start + 4]
        x = x + 0.01 * random.random() + 0.01 * np.random.rand()
        loss = nn.functional.mse_loss(model(x), y)
        (loss / aggregation).backward()
        if (index + 1) % aggregation == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("aggregation", [1, 3])
def test_the_losses_are_those_of_a_plain_loop(root: Path, aggregation: int) -> None:
    """Step by step, over several epochs, to the last bit."""

    class Ordered(Regression):
        shuffle = False

    random.seed(1)
    np.random.seed(1)
    with pytorch.init(aggregation_frequency=aggregation) as context:
        trial = Ordered(context)
        pytorch.Trainer(trial, context).fit(max_length=pytorch.Batch(30))
    assert trial.losses == by_hand(30, aggregation)


def run(managed: Managed, kind: type[Regression], preempt_at: int | None, aggregation: int) -> Any:
    """The next run of a trial; it is preempted during a batch, or goes on to the end."""

    class Preempted(kind):  # type: ignore[valid-type,misc]
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx + 1 == preempt_at:
                flag.request_preemption()
            return super().train_batch(batch, epoch_idx, batch_idx)

    flag: PreemptFlag
    with managed.run() as flag, pytorch.init(aggregation_frequency=aggregation) as context:
        trial = Preempted(context)
        info = det.get_cluster_info()
        assert info is not None
        pytorch.Trainer(trial, context).fit(
            validation_period=pytorch.Batch(6),
            checkpoint_period=pytorch.Batch(8),
            reporting_period=pytorch.Batch(5),
            latest_checkpoint=info.latest_checkpoint,
        )
    return trial


def test_a_preempted_trial_saves_first(managed: Managed) -> None:
    """The validation that was due after the same batch is left to the next run."""
    run(managed, Regression, 6, 1)
    assert (managed.checkpoints(), managed.steps("validation")) == ([6], [])
    run(managed, Regression, None, 1)
    assert managed.steps("validation") == [6, 12, 18, 20]
