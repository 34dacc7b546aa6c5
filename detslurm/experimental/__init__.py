"""The names of `determined.experimental`: the client's classes, and `core_v2`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("client", "core_v2")
_OLDER = {
    "ExperimentReference": "Experiment",
    "ModelOrderBy": "OrderBy",
    "TrialOrderBy": "OrderBy",
    "TrialReference": "Trial",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    sdk = import_module("detslurm.sdk")
    if new := _OLDER.get(name):
        import_module("detslurm.sdk.deprecation").deprecated(name, new)
        return getattr(sdk, new)
    if name not in sdk.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(sdk, name)


def __dir__() -> list[str]:
    return sorted([*_MODULES, *import_module("detslurm.sdk").__all__])
