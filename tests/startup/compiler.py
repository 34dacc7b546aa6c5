"""torch's compiler, loaded by those who compile.

More than half of what a small training's process computes is torch's imports, and half of those are
the compiler's: optimizers import it to say that they are not to be compiled. What is answered in
its place is what it would say: before it is loaded nothing is compiled, there is no graph to break
and none to stay out of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

from . import is_importing, shapes
from .loaded import LOADING, Loaded

_UTILS = "torch._dynamo.utils"


class Deferred(ModuleType):
    """`torch._dynamo`; what eager code asks of it is answered before it is loaded."""

    def __init__(self, spec: ModuleSpec, load: Callable[[ModuleType], None]) -> None:
        super().__init__(spec.name)
        self.__path__ = list(spec.submodule_search_locations or ())
        self._load, self.loads = load, False
        self.graph_break = lambda *_, **__: None
        self.disable = self._disabled
        self.assume_constant_result = _constant
        self._allowed: list[Any] = []
        self.allow_in_graph = self._allow
        # What the configuration says before anyone has changed it.
        self.utils = _Part(self, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")
        self.trace_rules = _Part(self, "trace_rules", clear_lru_cache=lambda: None)
        self.OptimizedModule = _optimized_module(self)
        self.eval_frame = _Part(self, "eval_frame", OptimizedModule=self.OptimizedModule)
        self._changed: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "config" and is_importing("timm.optim.kron"):
            return _Settings(self._changed)
        if _is_deferred(loaded(self)):
            raise AttributeError(name)  # of a module that is being loaded, by this thread
        return getattr(self, name)

    def load(self) -> None:
        """Become the compiler, which must not find parts of this in its place, and imports modules
        in circles with the shapes."""
        shapes.load()
        for name in ("utils", "trace_rules", "eval_frame", "OptimizedModule"):
            vars(self).pop(name, None)
        if isinstance(sys.modules.get(_UTILS), _Utils):
            del sys.modules[_UTILS]
        self._load(self)
        for name, value in self._changed.items():
            setattr(self.config, name, value)
        while self._allowed:
            self.allow_in_graph(self._allowed.pop(0))

    def _allow(self, fn: Any) -> Any:
        self._allowed.append(fn)
        return fn

    def _disabled(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        if fn is None:
            return lambda fn: self._disabled(fn, *args, **kwargs)
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


def _constant(fn: Any) -> Any:
    fn._dynamo_marked_constant = True  # as the compiler does
    return fn


class _Part:
    """A module of the compiler, as far as eager code asks it; the rest of it loads the compiler."""

    def __init__(self, compiler: Deferred, name: str, **known: Any) -> None:
        self._compiler, self._name = compiler, name
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(loaded(self._compiler), self._name), name)


class _Settings:
    """The compiler's configuration for a library that changes it at its import."""

    _changed: dict[str, Any]

    def __init__(self, changed: dict[str, Any]) -> None:
        vars(self)["_changed"] = changed

    def __setattr__(self, name: str, value: Any) -> None:
        self._changed[name] = value


class _Utils(ModuleType):
    """The compiler's utilities, for a library that imports one of them to call it later."""

    def get_optimize_ddp_mode(self) -> str:
        return "ddp_optimizer"

    def is_compile_supported(self, device: str) -> Any:
        return self.__getattr__("is_compile_supported")(device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(loaded(sys.modules["torch._dynamo"]).utils, name)


class _Later(Loader):
    """Of utilities that stand in for the compiler's."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Utils(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in them."""


def _optimized_module(compiler: Deferred) -> type:
    """Of which nothing is an instance before the compiler is loaded."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return not _is_deferred(compiler) and isinstance(instance, compiler.OptimizedModule)

        def __getattr__(cls, name: str) -> Any:
            return getattr(loaded(compiler).OptimizedModule, name)

    return Kind("OptimizedModule", (), {})


def _is_deferred(module: ModuleType | None) -> bool:
    return isinstance(module, Deferred)


def loaded(module: ModuleType) -> ModuleType:
    """The compiler's module after it has been loaded: until then other threads have what stands in
    for it. The thread that loads it gets it as it is."""
    with LOADING:
        if isinstance(module, Deferred) and not module.loads:
            module.loads = True
            try:
                module.load()
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


class _Uncompiled(Loader):
    """Runs a module of DeepSpeed's whose functions are not to be compiled."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from deepspeed.runtime import compiler

        compiles, compiler.compile = compiler.compile, lambda: lambda fn: fn
        try:
            self._real.exec_module(module)
        finally:
            compiler.compile = compiles


def uncompiled(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Of a module of DeepSpeed's, whose functions stay as they are."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _Uncompiled(spec.loader)
    return spec


def find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Of the compiler, deferred; of what is in it after it has been loaded."""
    package = "torch._dynamo"
    if name == package:
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Deferring(spec.loader)
        return spec
    compiler = sys.modules.get(package)
    if name == _UTILS and is_importing("torchvision.ops.roi_align") and _is_deferred(compiler):
        return ModuleSpec(name, _Later())
    # Another thread that loads it may wait for this module: it must not be waited for here.
    if name.startswith(f"{package}.") and isinstance(compiler, Deferred) and not compiler.loads:
        loaded(compiler)
        # Still there, it would be taken for one that another thread imports, and run once more.
        if (known := sys.modules.pop(name, None)) is not None:
            return ModuleSpec(name, Loaded(known))
    return None
