"""torch's shapes of results in Python, loaded by those who compute without data.

They are a quarter of torch's import. Who compiles, and FakeTensors, ask for them by what they
import or make; libraries that make models of meta tensors get them at once. Elsewhere most of what
can be done with meta tensors needs none, and the rest raises `NotImplementedError`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import wraps
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from .loaded import LOADING, Loaded

_SHAPES, _FAKES = "torch._meta_registrations", "torch._subclasses.fake_tensor"
_PARTS = ("torch._decomp", "torch._prims", "torch._refs")
"""What they alone import, and whoever compiles."""

_is_deferred = True


def load() -> None:
    """Load them, if they are not there."""
    global _is_deferred
    with LOADING:
        is_first, _is_deferred = _is_deferred, False
        shapes = sys.modules.get(_SHAPES)
        if is_first and isinstance(shapes, Deferred):
            assert shapes.__spec__ is not None and isinstance(shapes.__spec__.loader, _Deferring)
            shapes.__spec__.loader = shapes.__loader__ = shapes.__spec__.loader.real
            shapes.__loader__.exec_module(shapes)
            shapes.__class__ = ModuleType  # type: ignore[assignment]


class Deferred(ModuleType):
    """The shapes, until somebody asks for one."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks all modules for their files.
        if name.startswith("__"):
            raise AttributeError(name)
        load()
        if name not in vars(self):  # of what is being loaded, by this thread
            raise AttributeError(name)
        return vars(self)[name]


class _Deferring(Loader):
    """Loads the shapes when it is asked."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Deferred(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Later, but for what has nothing to do with shapes: who makes a generator needs it."""
        import torch

        if set_metaclass := getattr(torch._C, "_set_generator_metaclass", None):  # older ones don't
            from torch._opaque_base import OpaqueBaseMeta

            set_metaclass(OpaqueBaseMeta)


class _Fakes(Loader):
    """Loads the module of FakeTensors, whose first mode loads the shapes."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        mode = module.FakeTensorMode
        begin = mode.__init__

        @wraps(begin)
        def init(*args: Any, **kwargs: Any) -> None:
            load()
            begin(*args, **kwargs)

        mode.__init__ = init


def find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Of the shapes, deferred; of what asks for them, after they have been loaded."""
    if not _is_deferred:
        return None
    if name in (_SHAPES, _FAKES):
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Deferring(spec.loader) if name == _SHAPES else _Fakes(spec.loader)
        return spec
    load()
    # Still there, it would be taken for one that another thread imports, and run once more.
    known = sys.modules.pop(name, None) if name in _PARTS else None
    return None if known is None else ModuleSpec(name, Loaded(known))
