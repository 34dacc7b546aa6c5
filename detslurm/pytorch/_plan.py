"""The checked request of `fit()`; and how far to train, whatever decides it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from detslurm.core import SearcherContext, SearcherOperation, Unit
from detslurm.pytorch._schedule import Schedule, in_batches
from detslurm.pytorch._units import Batch, Epoch, Record, TrainUnit

Policy = Literal["best", "all", "none"]


@dataclass(frozen=True)
class TrainingPlan:
    """Everything that decides how a trial is trained."""

    schedule: Schedule = field(default_factory=Schedule)
    policy: Policy = "best"
    max_length: TrainUnit | None = None
    follows_search: bool = False
    latest_checkpoint: str | None = None
    step_zero_validation: bool = False
    test_mode: bool = False
    average_training_metrics: bool = True
    is_trainer: bool = True


@dataclass(frozen=True)
class TrainingTarget:
    """A length to train to, and the search's operation that it comes from."""

    batches: int
    operation: SearcherOperation | None = None


@dataclass(frozen=True)
class Measures:
    """The meaning of lengths in epochs and records here."""

    epoch_len: int
    global_batch_size: int | None

    def batches(self, unit: TrainUnit) -> int:
        """A length in batches. Raises `ValueError` for records without a batch size."""
        if isinstance(unit, Record):
            if self.global_batch_size is None:
                raise ValueError("a length in records needs the hyperparameter global_batch_size")
            unit = unit.batches(self.global_batch_size)
        return in_batches(unit, self.epoch_len)


def training_targets(
    plan: TrainingPlan, searcher: SearcherContext | None, measures: Measures
) -> Iterator[TrainingTarget]:
    """The lengths to train to, one after the other: the search's, or else that of `fit()`."""
    if searcher is None:
        assert plan.max_length is not None
        yield TrainingTarget(measures.batches(plan.max_length))
        return
    for operation in searcher.operations():
        kind = unit_of(searcher.get_configured_units(), plan.max_length)
        yield TrainingTarget(measures.batches(kind(operation.length)), operation)


_UNITS: Mapping[Unit, type[TrainUnit]] = {
    Unit.BATCHES: Batch,
    Unit.EPOCHS: Epoch,
    Unit.RECORDS: Record,
}


def unit_of(configured: Unit | None, given: TrainUnit | None) -> type[TrainUnit]:
    """The unit of the search's lengths; a bare number has that of `fit(max_length)`."""
    if configured is not None:
        return _UNITS[configured]
    assert given is not None
    return type(given)


def configured_length(searcher: Mapping[str, Any]) -> TrainUnit | int | None:
    """`searcher.max_length` of a configuration; an int has no unit."""
    value = searcher.get("max_length")
    if isinstance(value, Mapping):
        return unit(value)
    return None if value is None else int(value)


def unit(section: Mapping[str, Any]) -> TrainUnit | None:
    """`{batches: 100}` of a configuration; None for {}."""
    kinds = {"batches": Batch, "epochs": Epoch, "records": Record}
    return next(
        (kinds[name](int(number)) for name, number in section.items() if number is not None), None
    )
