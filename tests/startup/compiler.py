"""torch's compiler, loaded by those who compile.

More than half of what a small training's process computes is torch's imports, and half of those are
the compiler's: optimizers import it to say that they are not to be compiled. Nothing is replaced:
before it is loaded there is no graph to break and none to stay out of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any

_LOADING = RLock()


class Deferred(ModuleType):
    """`torch._dynamo`; what eager code asks of it is answered before it is loaded."""

    def __init__(self, spec: ModuleSpec, load: Callable[[ModuleType], None]) -> None:
        super().__init__(spec.name)
        self.__path__ = list(spec.submodule_search_locations or ())
        self._load, self.loads = load, False
        self.graph_break = lambda *_, **__: None
        self.disable = self._disabled
        self.utils = _Utilities(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _is_deferred(loaded(self)):
            raise AttributeError(name)  # of a module that is being loaded, by this thread
        return getattr(self, name)

    def _disabled(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(fn, FunctionType):
            return loaded(self).disable(fn, *args, **kwargs)
        real = None

        @wraps(fn)
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal real
            if _is_deferred(self):
                return fn(*arguments, **named)
            real = real or self.disable(fn, *args, **kwargs)
            return real(*arguments, **named)

        return call


class _Utilities:
    """`torch._dynamo.utils`, as far as DistributedDataParallel asks it."""

    def __init__(self, compiler: Deferred) -> None:
        self._compiler = compiler

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        return "ddp_optimizer"  # what its configuration says before anyone has changed it

    def __getattr__(self, name: str) -> Any:
        return getattr(loaded(self._compiler).utils, name)


def _is_deferred(module: ModuleType) -> bool:
    return isinstance(module, Deferred)


def loaded(module: ModuleType) -> ModuleType:
    """The compiler's module after it has been loaded: until then other threads have what stands in
    for it. The thread that loads it gets it as it is."""
    with _LOADING:
        if isinstance(module, Deferred) and not module.loads:
            module.loads = True
            try:
                module._load(module)
            finally:
                module.loads = False
            module.__class__ = ModuleType  # type: ignore[assignment]
    return module


class _Deferring(Loader):
    """Loads the compiler when it is asked."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Deferred(spec, self._load)

    def exec_module(self, module: ModuleType) -> None:
        """Later."""

    def _load(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._real
        self._real.exec_module(module)


class _Loaded(Loader):
    """Of a submodule that came with the compiler, while it was looked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec  # its configuration takes no such attribute


def find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Of the compiler, deferred; of what is in it after it has been loaded."""
    package = "torch._dynamo"
    if name == package:
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Deferring(spec.loader)
        return spec
    compiler = sys.modules.get(package)
    # Another thread that loads it may wait for this module: it must not be waited for here.
    if name.startswith(f"{package}.") and isinstance(compiler, Deferred) and not compiler.loads:
        loaded(compiler)
        # Still there, it would be taken for one that another thread imports, and run once more.
        if (known := sys.modules.pop(name, None)) is not None:
            return ModuleSpec(name, _Loaded(known))
    return None
