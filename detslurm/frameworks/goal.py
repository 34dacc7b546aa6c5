"""How far the search wants a trial to be trained, where a framework counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detslurm._base.info import get_cluster_info
from detslurm.config.run_config import RunConfig
from detslurm.core import Unit
from detslurm.searcher.trials import RUNNABLE

if TYPE_CHECKING:
    from detslurm.core import Context, SearcherOperation


class Goal:
    """The search's operations, one after the other. All ranks ask at the same steps.

    Positions are in `unit`, that of the experiment's lengths.
    """

    def __init__(
        self, operations: Iterator[SearcherOperation], unit: Unit, compared: Sequence[str]
    ) -> None:
        self._operations = operations
        self._operation = next(operations, None)
        self.unit = unit
        self._compared = compared

    @classmethod
    def of(cls, core: Context) -> Goal | None:
        """That of this trial; None where nothing waits for results, or the search stops trials
        instead of setting lengths."""
        info = get_cluster_info()
        if info is None or (searcher := RunConfig.of(info.trial._config).searcher).name in RUNNABLE:
            return None
        unit = core.searcher.get_configured_units() or Unit.BATCHES
        try:
            return cls(core.searcher.operations(), unit, searcher.compared)
        except ValueError:  # it has no max_length
            return None

    @property
    def is_over(self) -> bool:
        """Whether the search wants no more of this trial (for now)."""
        return self._operation is None

    def check(self, end: float, trainer: str, settings: str) -> None:
        """Raise `ValueError` where `trainer`, by these settings, ends before the operation."""
        if self._operation is None or self._operation.length <= end:
            return
        raise ValueError(
            f"the search wants this trial to train {self._operation.length}"
            f" {self.unit.value.lower()}, but {trainer} ends after {end:g}: raise {settings}, or"
            " lower searcher.max_length"
        )

    def is_reached(self, position: float) -> bool:
        """Whether the operation's length is trained."""
        return self._operation is not None and position >= self._operation.length

    def report_progress(self, position: float) -> None:
        """Report how far the operation is. Only the chief may call."""
        if self._operation is not None:
            self._operation.report_progress(position)

    def complete(self, validation: Mapping[str, Any]) -> None:
        """Complete the operation with the searcher's metrics, and take the next operation."""
        operation = self._operation
        if operation is not None and operation.is_chief:
            missing = [repr(name) for name in self._compared if name not in validation]
            if missing:
                raise RuntimeError(
                    f"the search compares {', '.join(missing)}, which the evaluation did not give;"
                    f" there are {', '.join(sorted(validation)) or 'none'}"
                )
            values = {name: validation[name] for name in self._compared}
            operation.report_completed(values if len(values) > 1 else next(iter(values.values())))
        self._operation = next(self._operations, None)
