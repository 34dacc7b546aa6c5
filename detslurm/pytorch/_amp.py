"""Automatic mixed precision: none, the trial's own scaler, or all of it done here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import torch

from detslurm.errors import InvalidExperimentException

_FIRST_SCALE: Final = 65536.0  # torch's own


class LossScale(NamedTuple):
    """The factor of a loss: a fixed number, or a number that adapts within bounds."""

    fixed: float | None = None
    least: float | None = None
    most: float | None = None

    def scaler(self, device: str) -> torch.amp.GradScaler:
        """The scaler that begins with it."""
        first = _FIRST_SCALE if self.fixed is None else self.fixed
        if self.fixed is None:
            first = min(max(first, self.least or 0.0), self.most or first)
        return torch.amp.GradScaler(device, init_scale=first)

    def update(self, scaler: torch.amp.GradScaler) -> None:
        """Let the scaler learn from the steps of a batch."""
        if self.fixed is not None:
            scaler.update(self.fixed)
            return
        scaler.update()
        if (self.least, self.most) != (None, None) and scaler._scale is not None:
            scaler._scale.clamp_(self.least, self.most)  # in place: nothing waits for the device


class MixedPrecision:
    """The scaler of a trial, and who is in charge of it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.scaler: Any = None
        self.automatic = False
        self._stepped = False
        self._scale = LossScale()

    def use(self, scale: LossScale = LossScale()) -> None:  # noqa: B008 (it can't change)
        """Take charge: autocast around forward passes, a scaler around backward passes."""
        self._refuse_second()
        self.scaler = scale.scaler(self._device.type)
        self.automatic, self._scale = True, scale

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
        """The context in which the code of a trial runs."""
        if not self.automatic:
            return _NOTHING
        cast: AbstractContextManager[Any] = torch.autocast(self._device.type)
        return cast

    def backward(self) -> AbstractContextManager[Any]:
        """The context of a backward pass, which takes the types of the forward pass anyway."""
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
            self._scale.update(self.scaler)
            self._stepped = False


_NOTHING: AbstractContextManager[Any] = nullcontext()


def _only_if(condition: Callable[[], bool], method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs) if condition() else None

    return guarded
