"""Lengths, periods, and what is due when."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from detslurm.pytorch import Batch, Epoch
from detslurm.pytorch._plan import Measures
from detslurm.pytorch._schedule import Due, Schedule
from detslurm.pytorch._units import NEVER, Record, TrainUnit


@pytest.mark.parametrize(
    ("unit", "steps"),
    [
        (Batch(3), [3, 6, 9]),
        (Batch([2, 5]), [2, 5]),
        (Batch({1, 100}), [1]),
        (Batch(range(0, 10, 4)), [0, 4, 8]),
        (Batch(0), list(range(10))),
        (NEVER, []),
    ],
)
def test_should_stop(unit: TrainUnit, steps: list[int]) -> None:
    """An int is a period, a container the very steps; less than 1 is always."""
    assert [step for step in range(10) if unit.should_stop(step)] == steps


@pytest.mark.parametrize("value", [1.5, None, object(), True, "100"])
def test_a_unit_takes_ints_and_containers(value: Any) -> None:
    """Anything else is a TypeError that names the unit."""
    with pytest.raises(TypeError, match="Epoch takes an int or a container"):
        Epoch(value)


def due_at(schedule: Schedule, what: Due, batches: int = 20) -> list[int]:
    return [n for n in range(1, batches + 1) if what in schedule.due(n, 4, 1000)]


def test_each_period_is_looked_at_after_every_batch() -> None:
    """Epochs count when they are over; the periods don't disturb each other."""
    schedule = Schedule(Epoch(2), Batch([3, 8]), Batch(7))
    assert due_at(schedule, Due.VALIDATE) == [8, 16]
    assert due_at(schedule, Due.CHECKPOINT) == [3, 8]
    assert due_at(schedule, Due.REPORT) == [7, 14]
    assert schedule.due(8, 4, 8) == Due.TRAIN | Due.VALIDATE | Due.CHECKPOINT
    assert schedule.due(5, 4, 8) is Due.NOTHING
    assert due_at(Schedule(reporting=Batch(7), each_epoch=True), Due.REPORT, 12) == [4, 7, 8, 12]


@pytest.mark.parametrize("validation", [NEVER, Epoch(2), Epoch([1, 4]), Epoch(0), Batch(5)])
@pytest.mark.parametrize("reporting", [NEVER, Batch(3), Batch({4, 9}), Batch(0), Epoch(1)])
@pytest.mark.parametrize("each_epoch", [False, True])
def test_nothing_is_due_in_quiet_batches(
    validation: TrainUnit, reporting: TrainUnit, each_epoch: bool
) -> None:
    """A loop that asks only where something may be due misses nothing."""
    schedule = Schedule(validation, reporting=reporting, each_epoch=each_epoch)
    for epoch_len in (1, 4, sys.maxsize):
        for done in range(20):
            until = schedule.quiet_until(done, epoch_len, 18)
            assert done < until or until == 18
            between = range(done + 1, until)
            assert all(schedule.due(n, epoch_len, 18) is Due.NOTHING for n in between)


def test_epochs_without_end_never_end() -> None:
    """An iterable data set is one epoch."""
    assert Schedule(Epoch(1)).due(1000, sys.maxsize, 5000) is Due.NOTHING


def test_lengths_in_batches() -> None:
    """Epochs by the length of an epoch, records by the global batch size, at least one batch."""
    measures = Measures(epoch_len=12, global_batch_size=32)
    assert measures.batches(Batch(5)) == 5
    assert measures.batches(Epoch(2)) == 24
    assert measures.batches(Record(320)) == 10
    assert measures.batches(Record(3)) == 1
    with pytest.raises(ValueError, match="global_batch_size"):
        Measures(12, None).batches(Record(1))
