"""How far the search wants a trial of the Trainer's to be trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detslurm._info import get_cluster_info
from detslurm.core import Unit
from detslurm.searcher.trials import RUNNABLE

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments

    from detslurm.core import Context, SearcherOperation


class Goal:
    """The search's operations, one after the other. All ranks ask at the same steps."""

    def __init__(
        self, operations: Iterator[SearcherOperation], unit: Unit | None, metric: str
    ) -> None:
        self._operations = operations
        self._operation = next(operations, None)
        self._unit = unit
        self._metric = metric

    @classmethod
    def of(cls, core: Context) -> Goal | None:
        """That of this trial; None where nothing waits for results, or the search stops trials
        instead of setting lengths."""
        info = get_cluster_info()
        searcher = info.trial._config["searcher"] if info is not None else {}
        if searcher.get("name") in (None, *RUNNABLE):
            return None
        unit = core.searcher.get_configured_units()
        try:
            return cls(core.searcher.operations(), unit, searcher["metric"])
        except ValueError:  # it has no max_length
            return None

    @property
    def is_over(self) -> bool:
        """Whether the search wants no more of this trial (for now)."""
        return self._operation is None

    def check(self, args: TrainingArguments, state: TrainerState) -> None:
        """Raise `ValueError` where the Trainer would end before the operation does."""
        if self._operation is None:
            return
        end = self._position(args, state.max_steps, float(state.num_train_epochs))
        if self._operation.length > end:
            unit = (self._unit or Unit.BATCHES).value.lower()
            raise ValueError(
                f"the search wants this trial to train {self._operation.length} {unit}, but the"
                f" Trainer ends after {end:g}: raise max_steps or num_train_epochs in its"
                " arguments, or lower searcher.max_length"
            )

    def is_reached(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Whether the operation's length is trained."""
        if self._operation is None:
            return False
        position = self._position(args, state.global_step, state.epoch or 0.0)
        return position >= self._operation.length

    def report_progress(self, args: TrainingArguments, state: TrainerState) -> None:
        """Report how far the operation is. Only the chief may call."""
        if self._operation is not None:
            position = self._position(args, state.global_step, state.epoch or 0.0)
            self._operation.report_progress(position)

    def complete(self, validation: Mapping[str, Any]) -> None:
        """Complete the operation with the searcher's metric, and take the next one."""
        operation = self._operation
        if operation is not None and operation.is_chief:
            if self._metric not in validation:
                raise RuntimeError(
                    f"the search compares {self._metric!r}, which the evaluation did not give;"
                    f" there are {', '.join(sorted(validation))}"
                )
            operation.report_completed(validation[self._metric])
        self._operation = next(self._operations, None)

    def _position(self, args: TrainingArguments, steps: int, epochs: float) -> float:
        if self._unit is Unit.EPOCHS:
            return epochs
        if self._unit is Unit.RECORDS:
            ranks = args.world_size * args.gradient_accumulation_steps
            return float(steps * args.train_batch_size * ranks)
        return float(steps)
