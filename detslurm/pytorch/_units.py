"""Lengths and periods of training, in batches or epochs."""

from __future__ import annotations

import sys
from collections.abc import Container
from typing import Any


class TrainUnit:
    """A length of training, or a period; use `Batch` or `Epoch`.

    Args:
        value: A number. As a period, also a container such as `[5, 30, 45]`, which means just after
            each of these.

    Raises:
        TypeError: If it is neither an int nor a container.
    """

    def __init__(self, value: int | Container[int]) -> None:
        if isinstance(value, bool | str) or not isinstance(value, int | Container):
            raise TypeError(
                f"{type(self).__name__} takes an int or a container of ints, not {value!r}"
            )
        self.value = value

    def should_stop(self, step_num: int) -> bool:
        """Return whether something with this period is due.

        Args:
            step_num: How many batches or epochs are done.
        """
        if not isinstance(self.value, int):
            return step_num in self.value
        return self.value < 1 or (step_num > 0 and step_num % self.value == 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.value == getattr(other, "value", None)

    def __hash__(self) -> int:
        return hash((type(self), repr(self.value)))


class Batch(TrainUnit):
    """A number of batches, as every slot counts them; `value` as in `TrainUnit`."""


class Epoch(TrainUnit):
    """A number of passes over the training data; `value` as in `TrainUnit`."""


class Record(TrainUnit):
    """A number of records over all slots; only configurations of the older kind have them."""

    def batches(self, global_batch_size: int) -> Batch:
        """The same in batches of all slots together, at least 1."""
        assert isinstance(self.value, int)
        return Batch(max(self.value // global_batch_size, 1))


NEVER = Batch(sys.maxsize)


def period(unit: Any, name: str) -> TrainUnit:
    """A period as `fit()` takes it; None means never. Raises `TypeError`."""
    if unit is None:
        return NEVER
    if not isinstance(unit, Batch | Epoch):
        raise TypeError(f"{name} must be pytorch.Batch or pytorch.Epoch, not {unit!r}")
    return unit


def length(unit: Any) -> TrainUnit:
    """A `max_length` as `fit()` takes it. Raises `TypeError`."""
    if not isinstance(unit, Batch | Epoch) or not isinstance(unit.value, int):
        raise TypeError(
            "max_length must be pytorch.Batch or pytorch.Epoch with an int, such as"
            f" pytorch.Epoch(10), not {unit!r}"
        )
    return unit
