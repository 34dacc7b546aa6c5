"""What the search wants of this trial: operations, each an absolute length to train to."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from detslurm.core._agreement import in_step
from detslurm.core._distributed import DistributedContext
from detslurm.core._goals import Goals
from detslurm.core._recorder import AnyRecorder


class Unit(enum.Enum):
    """The unit of the searcher's lengths."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Who may iterate over `operations()`."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHEIF_ONLY"  # the value is spelled so in the original, and it is public


class SearcherOperation:
    """Train until `length` (absolute, in configured units), validate, report."""

    def __init__(self, recorder: AnyRecorder, goals: Goals, length: int, is_chief: bool) -> None:
        self._recorder = recorder
        self._goals = goals
        self._length = length
        self._is_chief = is_chief
        self._completed = False

    @property
    def length(self) -> int:
        """The total length to have trained when this operation is completed."""
        return self._length

    @property
    def is_chief(self) -> bool:
        return self._is_chief

    def report_progress(self, length: float) -> None:
        """Tell how far the trial is, in the units of `length`. Chief only."""
        self._chief_only("report_progress")
        if self._completed and length != self.length:
            raise RuntimeError("you must not call op.report_progress() after op.report_completed()")
        share = min(max(length / self.length, 0.0), 1.0) if self.length else 1.0
        self._recorder.record({"t": "progress", "value": share})

    def report_completed(self, searcher_metric: Any) -> None:
        """Complete the operation with the metric that the search is over. Chief only, once.

        A metric is a number; a custom search takes whatever JSON can say. NaN counts as worst.
        """
        self._chief_only("report_completed")
        if self._completed:
            raise RuntimeError("you may only call op.report_completed() once")
        value = self._goals.metric(searcher_metric)
        self._recorder.commit({"t": "completed", "length": self.length, "metric": value})
        self._goals.completed(self.length, value)
        self._completed = True

    def _chief_only(self, method: str) -> None:
        if not self._is_chief:
            raise RuntimeError(f"you must only call op.{method}() from the chief worker")


class SearcherContext:
    """Gives the operations of this trial, one after the other."""

    def __init__(
        self,
        dist: DistributedContext,
        recorder: AnyRecorder,
        goals: Goals | None,
        units: Unit | None,
    ) -> None:
        self._dist = dist
        self._recorder = recorder
        self._goals = goals
        self._units = units

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Iterate over the operations; ends when the search wants no more of this trial.

        In mode WorkersAskChief all ranks must iterate in step. Raises `ValueError` when the
        configuration has no `searcher.max_length`, `RuntimeError` when an operation was left
        uncompleted.
        """
        goals = self._goals
        if goals is None:
            raise ValueError(
                "searcher.operations() needs `searcher.max_length` in the experiment configuration"
            )
        is_chief = self._dist.rank == 0
        if searcher_mode is SearcherMode.ChiefOnly and not is_chief:
            raise RuntimeError(
                "searcher_mode is ChiefOnly, but operations() was called from non-chief worker of "
                f"rank={self._dist.rank}"
            )
        operation: SearcherOperation | None = None
        while (length := self._agree(goals, operation, searcher_mode)) is not None:
            operation = SearcherOperation(self._recorder, goals, length, is_chief)
            yield operation
        if auto_ack:
            self.acknowledge_out_of_ops()

    def _agree(
        self, goals: Goals, last: SearcherOperation | None, mode: SearcherMode
    ) -> int | None:
        """The chief's next length; raises everywhere when it left its last operation open."""

        def own() -> int | None:
            if self._dist.rank != 0:
                return None  # it may have read the store at another moment: the chief decides
            if last is not None and not last._completed:
                raise RuntimeError("you must call op.report_completed() on each operation")
            return goals.next()

        if mode is SearcherMode.ChiefOnly:
            return own()
        return in_step(self._dist, own, lambda lengths: lengths[0])

    def acknowledge_out_of_ops(self) -> None:
        """Tell that this process leaves because the search has no more work for it."""
        if self._dist.rank == 0:
            self._recorder.record({"t": "out_of_ops"})

    def get_configured_units(self) -> Unit | None:
        """The unit of the searcher's lengths, or None where the configuration names none."""
        return self._units


def configured_unit(searcher: Mapping[str, Any]) -> Unit | None:
    """The unit of `max_length` or `length_per_round`, or the one that a custom search names."""
    length = searcher.get("max_length") or searcher.get("length_per_round")
    unit = next(iter(length)) if isinstance(length, Mapping) else searcher.get("unit")
    return None if unit is None else Unit[unit.upper()]
