"""Calls the callbacks, in the order in which the trial named them."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from detslurm.pytorch._base_trial import by_name
from detslurm.pytorch._callback import PyTorchCallback

logger = logging.getLogger("detslurm.pytorch")

_EPOCH_START = "on_training_epoch_start"


class Hooks:
    """All callbacks of a trial as one: `hooks.on_x(...)` calls `on_x` of each that overrides it."""

    def __init__(self, callbacks: Mapping[str, PyTorchCallback]) -> None:
        if not isinstance(callbacks, Mapping):
            raise TypeError(
                "build_callbacks() must return a dict of PyTorchCallbacks by name, not"
                f" {type(callbacks).__name__}"
            )
        for name, callback in callbacks.items():
            if not isinstance(callback, PyTorchCallback):
                raise TypeError(
                    f"build_callbacks() must return PyTorchCallbacks by name; {name!r} is a"
                    f" {type(callback).__name__}"
                )
            _warn_of_unknown(type(callback))
        self.callbacks = dict(callbacks)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        default = getattr(PyTorchCallback, name)
        methods = [
            _epoch_start(callback) if name == _EPOCH_START else hook(callback, name)
            for callback in self.callbacks.values()
            if getattr(type(callback), name) is not default or name in vars(callback)
        ]

        def call(*args: Any) -> None:
            for method in methods:
                method(*args)

        setattr(self, name, call)  # resolved once: some are called for every batch
        return call


def hook(callback: PyTorchCallback, name: str) -> Callable[..., None]:
    """A callback's hook, called with arguments in the documented order: by their names, so that an
    override may have them in another order, or take some as keywords."""
    arguments = [*inspect.signature(getattr(PyTorchCallback, name)).parameters]
    return by_name(getattr(callback, name), *arguments[1:])  # the first is `self`


def _warn_of_unknown(kind: type[PyTorchCallback]) -> None:
    hooks = [name for name in vars(PyTorchCallback) if name.startswith("on_")]
    for name in sorted(set(dir(kind)) - set(hooks)):
        if name.startswith("on_"):
            near = difflib.get_close_matches(name, hooks, 1)
            hint = f"; did you mean {near[0]}()?" if near else ""
            logger.warning("%s.%s() is not a hook and never called%s", kind.__name__, name, hint)


def _epoch_start(callback: PyTorchCallback) -> Callable[[int], None]:
    method: Callable[..., None] = callback.on_training_epoch_start
    if inspect.signature(method).parameters:
        return method
    logger.warning(
        "%s.on_training_epoch_start() should take the number of the epoch: (self, epoch_idx)",
        type(callback).__name__,
    )
    return lambda epoch_idx: method()
