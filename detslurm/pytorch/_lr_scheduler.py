"""When a learning rate scheduler takes a step."""

from __future__ import annotations

import enum
from typing import Any


class LRScheduler:
    """A scheduler, its state kept over checkpoints, stepped as often as `step_mode` wants.

    `frequency` is in epochs, batches or optimizer steps, as the mode says.
    """

    class StepMode(enum.Enum):
        """When `scheduler.step()` is called.

        STEP_EVERY_EPOCH: after every `frequency` epochs. STEP_EVERY_BATCH: after every `frequency`
        batches; under gradient aggregation as often, but together at the optimizer's step.
        STEP_EVERY_OPTIMIZER_STEP: after every `frequency` steps of the optimizer. MANUAL_STEP:
        never; the code of the trial calls it.
        """

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3
        STEP_EVERY_OPTIMIZER_STEP = 4

    def __init__(self, scheduler: Any, step_mode: StepMode, frequency: int = 1) -> None:
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(f"step_mode must be an LRScheduler.StepMode, not {step_mode!r}")
        if frequency < 1:
            raise ValueError(f"frequency must be 1 or more, not {frequency}")
        self._scheduler = scheduler
        self._step_mode = step_mode
        self._frequency = frequency

    @property
    def step_mode(self) -> StepMode:
        """When it steps."""
        return self._step_mode

    @property
    def frequency(self) -> int:
        """How many epochs, batches or optimizer steps lie between two of its steps."""
        return self._frequency

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler."""
        self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """The learning rates that the last step has set."""
        return list(self._scheduler.get_last_lr())

    def step_after(self, batch_idx: int, epoch_len: int, aggregation_frequency: int = 1) -> None:
        """Step the scheduler as often as is due after this batch."""
        for _ in range(self._steps_due(batch_idx, epoch_len, aggregation_frequency)):
            self._scheduler.step()

    def _steps_due(self, batch_idx: int, epoch_len: int, aggregation: int) -> int:
        batches = batch_idx + 1
        if self._step_mode is LRScheduler.StepMode.MANUAL_STEP or batches % aggregation:
            return 0
        if self._step_mode is LRScheduler.StepMode.STEP_EVERY_BATCH:
            return self._multiples(batches - aggregation, batches)
        if self._step_mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            return self._multiples(batches // aggregation - 1, batches // aggregation)
        # An epoch counts as over when the next step of the optimizer belongs to a later one.
        begun = batch_idx // epoch_len if batches > aggregation else 0
        return self._multiples(begun, (batch_idx + aggregation) // epoch_len)

    def _multiples(self, before: int, after: int) -> int:
        """How many multiples of the frequency lie above `before` and up to `after`."""
        return after // self._frequency - before // self._frequency

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler."""
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put the scheduler into a state that it was in."""
        self._scheduler.load_state_dict(state_dict)
