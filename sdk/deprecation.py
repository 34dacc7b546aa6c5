"""Names that Determined has given up and scripts still use."""

from __future__ import annotations

import warnings
from typing import Any

from detslurm import sdk

_OLDER = {
    "CheckpointOrderBy": "OrderBy",
    "ExperimentOrderBy": "OrderBy",
    "ExperimentReference": "Experiment",
    "ModelOrderBy": "OrderBy",
    "TrialOrderBy": "OrderBy",
    "TrialReference": "Trial",
}


def deprecated(old: str, new: str, *, level: int = 3) -> None:
    """Warn the caller of the function that calls this, or the function `level` frames away."""
    warnings.warn(f"{old} is called {new} now", FutureWarning, stacklevel=level)


def sdk_attribute(module: str, name: str) -> Any:
    """Return `module.name` of the SDK, by its newer or older name. Raises `AttributeError`."""
    if newer := _OLDER.get(name):
        deprecated(name, newer, level=4)
        name = newer
    if name not in sdk.__all__:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(sdk, name)
