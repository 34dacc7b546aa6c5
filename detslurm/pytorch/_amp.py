"""Automatic mixed precision: none, the trial's own scaler, or all of it done here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from detslurm.errors import InvalidExperimentException


class MixedPrecision:
    """The scaler of a trial, and who is in charge of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.scaler: Any = None
        self.automatic = False
        self._stepped = False

    def use(self) -> None:
        """Take charge: autocast around forward passes, a scaler around backward passes."""
        self._refuse_second()
        self.scaler = torch.amp.GradScaler(self._device.type)
        self.automatic = True

    def wrap(
        self, scaler: Any, steps_now: Callable[[], bool], average: Callable[[Any], None]
    ) -> Any:
        """Keep the state of a scaler that the trial uses on its own.

        Between two steps under gradient aggregation its `unscale_()` and `update()` do nothing:
        gradients are still being gathered. `average` an optimizer's gradients before they are
        unscaled: all ranks must find the same infinities.
        """
        self._refuse_second()
        self.scaler = scaler
        unscale = scaler.unscale_

        def unscale_averages(optimizer: Any) -> None:
            average(optimizer)
            unscale(optimizer)

        scaler.unscale_ = _only_if(steps_now, unscale_averages)
        scaler.update = _only_if(steps_now, scaler.update)
        return scaler

    def _refuse_second(self) -> None:
        if self.scaler is not None:
            raise InvalidExperimentException(
                "there is a gradient scaler already: call wrap_scaler() once, and not together"
                " with context.experimental.use_amp()"
            )

    def forward(self) -> AbstractContextManager[Any]:
        """What to run the code of a trial in."""
        if not self.automatic:
            return _NOTHING
        cast: AbstractContextManager[Any] = torch.autocast(self._device.type)
        return cast

    def backward(self) -> AbstractContextManager[Any]:
        """What to run a backward pass in: it takes the types of the forward pass anyway."""
        if not self.automatic:
            return _NOTHING
        off: AbstractContextManager[Any] = torch.autocast(self._device.type, enabled=False)
        return off

    def step(self, optimizer: Any, clip: Callable[[], None] | None) -> None:
        """Step an optimizer with the scaler, gradients unscaled before they are clipped."""
        if clip is not None:
            self.scaler.unscale_(optimizer)
            clip()
        self.scaler.step(optimizer)
        self._stepped = True
        # Autocast keeps the weights that it has cast until its block ends, which here is the whole
        # batch: another forward pass would compute with those from before this step.
        torch.clear_autocast_cache()

    def after_batch(self) -> None:
        """Let the scaler learn from the steps of this batch."""
        if self._stepped:
            self.scaler.update()
            self._stepped = False


_NOTHING: AbstractContextManager[Any] = nullcontext()


def _only_if(condition: Callable[[], bool], method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs) if condition() else None

    return guarded
