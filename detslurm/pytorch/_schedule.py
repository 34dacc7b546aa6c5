"""The work due after each batch: a function of numbers alone."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from detslurm.pytorch._units import NEVER, Epoch, TrainUnit


class Due(enum.Flag):
    """Kinds of work after a batch; done in this order."""

    NOTHING = 0
    TRAIN = enum.auto()  # the length is reached
    VALIDATE = enum.auto()
    CHECKPOINT = enum.auto()
    REPORT = enum.auto()


@dataclass(frozen=True)
class Schedule:
    """When to validate, to save, to report; with `each_epoch` to report after each epoch, too."""

    validation: TrainUnit = NEVER
    checkpoint: TrainUnit = NEVER
    reporting: TrainUnit = NEVER
    each_epoch: bool = False

    def due(self, batches: int, epoch_len: int, target: int) -> Due:
        """The work due after this number of batches in training to `target` batches."""
        due = Due.TRAIN if batches >= target else Due.NOTHING
        epochs, rest = divmod(batches, epoch_len)
        if _reached(self.validation, batches, epochs, rest):
            due |= Due.VALIDATE
        if _reached(self.checkpoint, batches, epochs, rest):
            due |= Due.CHECKPOINT
        if _reached(self.reporting, batches, epochs, rest) or (self.each_epoch and rest == 0):
            due |= Due.REPORT
        return due

    def quiet_until(self, batches: int, epoch_len: int, target: int) -> int:
        """The next number of batches, after this number, at which anything may be due."""
        epoch = Epoch(1) if self.each_epoch else NEVER
        periods = (self.validation, self.checkpoint, self.reporting, epoch)
        return min(target, *(_next(period, batches, epoch_len) for period in periods))


def _next(period: TrainUnit, batches: int, epoch_len: int) -> int:
    each = epoch_len if isinstance(period, Epoch) else 1
    if isinstance(period.value, int):
        each *= max(period.value, 1)
    return (batches // each + 1) * each


def _reached(period: TrainUnit, batches: int, epochs: int, rest: int) -> bool:
    if isinstance(period, Epoch):
        return rest == 0 and period.should_stop(epochs)
    return period.should_stop(batches)


def in_batches(length: TrainUnit, epoch_len: int) -> int:
    """A length in batches."""
    assert isinstance(length.value, int)
    return length.value * epoch_len if isinstance(length, Epoch) else length.value
