"""The libraries that formats need, each optional."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from detslurm.sdk.errors import LifecycleError

# The module that must be there, and the extra that brings it.
_NEEDED: Final = {
    "parquet": ("pyarrow", "parquet"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
}


def require(to: str) -> None:
    """Raise LifecycleError, with what to install, where the format's library is missing."""
    module, extra = _NEEDED.get(to, (None, None))
    if module is not None and find_spec(module) is None:
        raise LifecycleError(
            f"{to} needs {module}, which is not installed for this Python: "
            f"pip install 'detslurm[{extra}]'"
        )
