"""Modules that are loaded late, one thread at a time; and those that come with them."""

from __future__ import annotations

from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType

LOADING = RLock()


class Loaded(Loader):
    """Of a module that came with another one, while it was looked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec  # its configuration takes no such attribute
