"""The names of `determined.experimental`: the client's classes, and `core_v2`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("client", "core_v2")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    return import_module("detslurm.sdk.deprecation").sdk_attribute(__name__, name)


def __dir__() -> list[str]:
    return sorted([*_MODULES, *import_module("detslurm.sdk").__all__])
