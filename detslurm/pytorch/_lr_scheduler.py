"""When a learning rate scheduler takes a step."""

from __future__ import annotations

import enum
from typing import Any


class LRScheduler:
    """A learning rate scheduler whose state is kept over checkpoints, and when it steps.

    Args:
        scheduler: The scheduler of torch.
        step_mode: When it steps.
        frequency: The number of epochs, batches or optimizer steps between two of its steps, as the
            mode defines; 1 by default.

    Raises:
        TypeError: If `step_mode` is not an `LRScheduler.StepMode`.
        ValueError: If `frequency` is less than 1.
    """

    class StepMode(enum.Enum):
        """When `scheduler.step()` is called.

        Attributes:
            STEP_EVERY_EPOCH: After every `frequency` epochs.
            STEP_EVERY_BATCH: After every `frequency` batches; under gradient aggregation as often,
                but together at the optimizer's step.
            MANUAL_STEP: Never; the code of the trial calls it.
            STEP_EVERY_OPTIMIZER_STEP: After every `frequency` steps of the optimizer.
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
        """The number of epochs, batches or optimizer steps between two of its steps."""
        return self._frequency

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler; `*args` and `**kwargs` are for its own `step()`."""
        self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates that the last step has set."""
        return list(self._scheduler.get_last_lr())

    def step_after(self, batch_idx: int, epoch_len: int, aggregation_frequency: int = 1) -> None:
        """Step the scheduler as often as is due after a batch.

        Args:
            batch_idx: The batch, counted from 0 at the start of training.
            epoch_len: The number of batches of an epoch.
            aggregation_frequency: The number of batches for each step of the optimizer; 1 by
                default.
        """
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
        # An epoch counts as over when the next step of the optimizer belongs to a later epoch.
        begun = batch_idx // epoch_len if batches > aggregation else 0
        return self._multiples(begun, (batch_idx + aggregation) // epoch_len)

    def _multiples(self, before: int, after: int) -> int:
        """How many multiples of the frequency lie above `before` and up to `after`."""
        return after // self._frequency - before // self._frequency

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler."""
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the scheduler from `state_dict`, a result of `state_dict()`."""
        self._scheduler.load_state_dict(state_dict)
