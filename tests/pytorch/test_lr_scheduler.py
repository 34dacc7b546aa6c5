"""Schedulers step when they should, also under gradient aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from detslurm.frameworks.optimizer_options import Options
from detslurm.pytorch._lr_scheduler import LRScheduler

Mode = LRScheduler.StepMode


class Count:
    """A scheduler that counts its steps."""

    steps = 0

    def step(self) -> None:
        self.steps += 1


def steps(
    mode: LRScheduler.StepMode, frequency: int, batches: int, epoch: int, agg: int = 1
) -> list[int]:
    """How often the scheduler has stepped after each batch."""
    count = Count()
    scheduler = LRScheduler(count, mode, frequency)
    found = []
    for batch in range(batches):
        scheduler.step_after(batch, epoch, agg)
        found.append(count.steps)
    return found


@pytest.mark.parametrize(
    ("mode", "frequency", "agg", "expected"),
    [
        (Mode.STEP_EVERY_EPOCH, 1, 1, [0, 0, 1, 1, 1, 2, 2, 2, 3]),
        (Mode.STEP_EVERY_EPOCH, 2, 1, [0, 0, 0, 0, 0, 1, 1, 1, 1]),
        (Mode.STEP_EVERY_BATCH, 1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Mode.STEP_EVERY_BATCH, 2, 1, [0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (Mode.STEP_EVERY_BATCH, 1, 3, [0, 0, 3, 3, 3, 6, 6, 6, 9]),
        (Mode.STEP_EVERY_BATCH, 2, 3, [0, 0, 1, 1, 1, 3, 3, 3, 4]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 1, 1, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 1, 2, [0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (Mode.STEP_EVERY_OPTIMIZER_STEP, 2, 2, [0, 0, 0, 1, 1, 1, 1, 2, 2]),
        # The optimizer steps at 2, 4, 6, 8; the step at 2 is the last one within the first epoch.
        (Mode.STEP_EVERY_EPOCH, 1, 2, [0, 1, 1, 1, 1, 2, 2, 3, 3]),
        (Mode.STEP_EVERY_EPOCH, 1, 7, [0, 0, 0, 0, 0, 0, 4, 4, 4]),
        (Mode.MANUAL_STEP, 1, 1, [0] * 9),
    ],
)
def test_steps(mode: LRScheduler.StepMode, frequency: int, agg: int, expected: list[int]) -> None:
    """Every mode over three epochs of three batches."""
    assert steps(mode, frequency, 9, epoch=3, agg=agg) == expected


@given(st.sampled_from(list(Mode)), st.integers(1, 5), st.integers(1, 9), st.integers(1, 5))
def test_nothing_is_lost(mode: LRScheduler.StepMode, frequency: int, epoch: int, agg: int) -> None:
    """Steps come with the optimizer's only, and over time as many as the mode says."""
    found = steps(mode, frequency, 5 * epoch * agg * frequency, epoch, agg)
    changes = [i for i, (a, b) in enumerate(zip([0, *found], found, strict=False)) if a != b]
    assert all((i + 1) % agg == 0 for i in changes)
    units = {Mode.STEP_EVERY_EPOCH: epoch, Mode.STEP_EVERY_BATCH: 1, Mode.MANUAL_STEP: 10**9}
    per_step = units.get(mode, agg) * frequency
    ahead = agg // per_step + 1 if mode is Mode.STEP_EVERY_EPOCH else 0
    assert len(found) // per_step <= found[-1] <= len(found) // per_step + ahead


def scheduler(mode: LRScheduler.StepMode = Mode.MANUAL_STEP) -> tuple[Any, LRScheduler]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    wrapped = LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), mode)
    optimizer.step()
    return optimizer, wrapped


def test_state_is_kept() -> None:
    """A scheduler restored from the state of another goes on where that one was."""
    optimizer, first = scheduler()
    first.step()
    first.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer, second = scheduler()
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.step_mode is Mode.MANUAL_STEP and second.frequency == 1
    second.step()
    assert second.state_dict()["last_epoch"] == 3
    assert second.get_last_lr() == [optimizer.param_groups[0]["lr"]]


def test_mistakes() -> None:
    """A mode that is none and a frequency below 1 are told at once."""
    with pytest.raises(TypeError, match="StepMode"):
        LRScheduler(Count(), "epoch")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="frequency"):
        LRScheduler(Count(), Mode.STEP_EVERY_BATCH, 0)


def sequence(optimizer: Any) -> Any:
    inner = [
        lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2),
        lr_scheduler.CosineAnnealingLR(optimizer, 10),
    ]
    return lr_scheduler.SequentialLR(optimizer, inner, [2])


def cycle(optimizer: Any) -> Any:
    low, high = (factor * optimizer.param_groups[0]["lr"] for factor in (1, 3))
    return lr_scheduler.CyclicLR(optimizer, low, high, step_size_up=2, cycle_momentum=False)


def chain(optimizer: Any) -> Any:
    return lr_scheduler.ChainedScheduler([sequence(optimizer)])


@pytest.mark.parametrize("make", [sequence, cycle, chain])
def test_a_copy_has_its_own_learning_rate(make: Callable[[Any], Any]) -> None:
    """At the place of its original's schedule and from there on, also in schedules within it."""

    def trained(rate: float, steps: int) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        scheduler = make(optimizer)
        advance(optimizer, scheduler, steps)
        return optimizer, scheduler

    def advance(optimizer: Any, scheduler: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    original, copy, alone = trained(0.1, 2), trained(1.0, 0), trained(1.0, 2)
    own = Options([copy[0]], [copy[1]])
    for ours, theirs in zip(copy, original, strict=True):
        ours.load_state_dict(theirs.state_dict())
    own.apply()
    assert copy[0].param_groups[0]["lr"] == pytest.approx(alone[0].param_groups[0]["lr"])
    assert advance(*copy, 6) == pytest.approx(advance(*alone, 6))
