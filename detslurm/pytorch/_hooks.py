"""Calls the callbacks, in the order in which the trial named them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from detslurm.pytorch._callback import PyTorchCallback

logger = logging.getLogger("detslurm.pytorch")

_EPOCH_START = "on_training_epoch_start"


class Hooks:
    """All callbacks of a trial as one: `hooks.on_x(...)` calls `on_x` of each that overrides it."""

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        for name, callback in callbacks.items():
            if not isinstance(callback, PyTorchCallback):
                raise TypeError(
                    f"build_callbacks() must return PyTorchCallbacks by name; {name!r} is a"
                    f" {type(callback).__name__}"
                )
        self.callbacks = dict(callbacks)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        default = getattr(PyTorchCallback, name)
        methods = [
            _epoch_start(callback) if name == _EPOCH_START else getattr(callback, name)
            for callback in self.callbacks.values()
            if getattr(type(callback), name) is not default or name in vars(callback)
        ]

        def call(*args: Any) -> None:
            for method in methods:
                method(*args)

        setattr(self, name, call)  # looked up once: some are called for every batch
        return call


def _epoch_start(callback: PyTorchCallback) -> Callable[[int], None]:
    method: Callable[..., None] = callback.on_training_epoch_start
    if inspect.signature(method).parameters:
        return method
    logger.warning(
        "%s.on_training_epoch_start() should take the number of the epoch: (self, epoch_idx)",
        type(callback).__name__,
    )
    return lambda epoch_idx: method()
