"""The budget of an experiment: the slot-hours that it may use, and those that it has used."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Self

from detslurm._base.quantities import amount
from detslurm.sdk.costs.efficiency import efficiency
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.store import Spending, StoreError


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of an experiment, and the slot-hours used so far; None if they can't be read."""

    slot_hours: float
    used: float | None

    @classmethod
    def of(cls, one: ExperimentSnapshot) -> Self | None:
        """The budget of an experiment; None if it has none."""
        hours = one.facts.budget
        if hours is None:
            return None
        try:
            return cls(hours, Spending(one.directory).total() / 3600)
        except StoreError:
            return cls(hours, None)

    @property
    def is_used(self) -> bool:
        """Whether the budget is known to be used."""
        return self.used is not None and self.used >= self.slot_hours

    def __str__(self) -> str:
        if self.used is None:
            return f"{amount(self.slot_hours)} slot-hours (the usage can't be read)"
        return f"used {amount(self.used)} of {amount(self.slot_hours)} slot-hours"


def check(one: ExperimentSnapshot, slot_hours: object) -> None:
    """Raise `TypeError` or `LifecycleError` for an impossible budget."""
    if not isinstance(slot_hours, int | float) or isinstance(slot_hours, bool):
        raise TypeError(f"a budget is a number of slot-hours, not {slot_hours!r}")
    if not (slot_hours > 0 and math.isfinite(slot_hours)):
        raise LifecycleError(f"a budget is a positive number of slot-hours, not {slot_hours}")
    if not one.facts.created.managed or not one.view.slots:
        raise LifecycleError(f"experiment {one.directory.id} has no slots that could be counted")


def open_account(one: ExperimentSnapshot) -> None:
    """Record the use before there was a budget, so that it counts."""
    if one.facts.budget is not None:
        return
    trials = [(one.directory.trial(number), one.read_trial(number)) for number in one.trials]
    hours = [efficiency(trial, view, one.facts).slot_hours for trial, view in trials]
    used = sum(known for known in hours if known is not None)
    Spending(one.directory).raise_to(used * 3600, time=time.time())
