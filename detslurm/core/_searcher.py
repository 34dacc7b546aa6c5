"""The search's operations for this trial, each an absolute length to train to."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

from detslurm._base.display import Displayed
from detslurm.config.run_config import RunSearcher
from detslurm.core._collective import run_collectively
from detslurm.core._distributed import DistributedContext
from detslurm.core._lengths import LengthSource
from detslurm.core._recorder import AnyRecorder


class Unit(enum.Enum):
    """The unit of the searcher's lengths.

    Attributes:
        EPOCHS: Passes over the training data.
        RECORDS: Samples of the training data.
        BATCHES: Batches of the training data.
    """

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """The ranks that may iterate over `operations()`.

    Attributes:
        WorkersAskChief: All ranks iterate together and get the chief's operations.
        ChiefOnly: Only the chief may iterate.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHEIF_ONLY"  # the value is spelled so in the original, and it is public


class SearcherOperation(Displayed):
    """A length that the search wants this trial to train to: train, validate, then report."""

    def __init__(
        self, recorder: AnyRecorder, lengths: LengthSource, length: int, is_chief: bool
    ) -> None:
        self._recorder = recorder
        self._lengths = lengths
        self._length = length
        self._is_chief = is_chief
        self._completed = False

    def _facts(self) -> dict[str, Any]:
        return {"length": self._length, "completed": self._completed}

    @property
    def length(self) -> int:
        """The total length to have trained when this operation is completed, in the configured
        unit.
        """
        return self._length

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief, which reports."""
        return self._is_chief

    def report_progress(self, length: float) -> None:
        """Report the `length` trained so far, in the unit of the operation's. Only the chief may
        call, and not after `report_completed()`: else it raises `RuntimeError`.
        """
        self._chief_only("report_progress")
        if self._completed and length != self.length:
            raise RuntimeError("you must not call op.report_progress() after op.report_completed()")
        share = min(max(length / self.length, 0.0), 1.0) if self.length else 1.0
        self._recorder.record({"t": "progress", "value": share})

    def report_completed(self, searcher_metric: Any) -> None:
        """Complete the operation with the metric that the search compares. Only the chief may call,
        once.

        Args:
            searcher_metric: A number; NaN counts as the worst. Where the search has several
                metrics, or constraints on others, a mapping of all of them by name. A custom search
                takes anything that JSON can express.

        Raises:
            RuntimeError: If a worker calls, the operation is completed already, or the mapping
                lacks a metric.
            TypeError: If the metric is not a number.
            ValueError: If the metric is text that is not a number, or a custom search gets None.
        """
        self._chief_only("report_completed")
        if self._completed:
            raise RuntimeError("you may only call op.report_completed() once")
        value = self._lengths.metric(searcher_metric)
        self._recorder.commit({"t": "completed", "length": self.length, "metric": value})
        self._lengths.completed(self.length, value)
        self._completed = True

    def _chief_only(self, method: str) -> None:
        if not self._is_chief:
            raise RuntimeError(f"you must only call op.{method}() from the chief worker")


class SearcherContext(Displayed):
    """The operations that the search wants of this trial, one after the other: `core.searcher`."""

    def __init__(
        self,
        dist: DistributedContext,
        recorder: AnyRecorder,
        lengths: LengthSource | None,
        units: Unit | None,
    ) -> None:
        self._dist = dist
        self._recorder = recorder
        self._lengths = lengths
        self._units = units

    def _facts(self) -> dict[str, Any]:
        return {"rank": self._dist.rank, "unit": self._units and self._units.value}

    def operations(
        self,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
        auto_ack: bool = True,
    ) -> Iterator[SearcherOperation]:
        """Yield the operations, waiting where the search has to decide first, until it wants no
        more of this trial.

        The chief must complete each operation before the next. The lengths are absolute:
        an operation of length 200 after one of 100 wants 100 more.

        Args:
            searcher_mode: By default all ranks iterate together; with `ChiefOnly` the chief alone.
            auto_ack: Whether the end of the iteration also calls `acknowledge_out_of_ops()`; on by
                default.

        Raises:
            ValueError: If the configuration has no `searcher.max_length`.
            RuntimeError: If an operation was not completed, or a worker iterates with `ChiefOnly`.

        Example:
            import detslurm as det

            with det.core.init() as core:
                trained = 0
                for op in core.searcher.operations():
                    while trained < op.length:
                        trained += 1
                    op.report_completed(1 / trained)
        """
        lengths = self._lengths
        if lengths is None:
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
        while (length := self._agree(lengths, operation, searcher_mode)) is not None:
            operation = SearcherOperation(self._recorder, lengths, length, is_chief)
            yield operation
        if auto_ack:
            self.acknowledge_out_of_ops()

    def _agree(
        self, lengths: LengthSource, last: SearcherOperation | None, mode: SearcherMode
    ) -> int | None:
        """The chief's next length; raises everywhere when it left its last operation open."""

        def own() -> int | None:
            if self._dist.rank != 0:
                return None  # it may have read the store at another moment: the chief decides
            if last is not None and not last._completed:
                raise RuntimeError("you must call op.report_completed() on each operation")
            return lengths.next()

        if mode is SearcherMode.ChiefOnly:
            return own()
        return run_collectively(self._dist, own, lambda by_rank: by_rank[0])

    def acknowledge_out_of_ops(self) -> None:
        """Report that this process exits because the search has no more work for it."""
        if self._dist.rank == 0:
            self._recorder.record({"t": "out_of_ops"})

    def get_configured_units(self) -> Unit | None:
        """Return the unit of the searcher's lengths, or None if the configuration names none."""
        return self._units


def configured_unit(searcher: RunSearcher) -> Unit | None:
    """The unit of the searcher's lengths."""
    return None if searcher.length_unit is None else Unit[searcher.length_unit.upper()]
