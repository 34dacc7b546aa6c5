"""Loading a checkpoint into this process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from detslurm.sdk.errors import LifecycleError


def load(path: Path | None, download: Callable[[Path], Path], loader: Callable[[Path], Any]) -> Any:
    """Return a loader's result for a directory; for files in a bucket, for a copy of them."""
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            return loader(download(Path(folder) / "checkpoint"))
    if not path.is_dir():
        raise LifecycleError(f"the files of a checkpoint are gone: {path}")
    return loader(path)


def load_trial(path: Path) -> Any:
    """The trial that a `PyTorchTrial` saved."""
    if not (path / "load_data.json").exists():
        raise LifecycleError(
            f"{path} is not a PyTorchTrial's checkpoint: load(loader) calls a function with its "
            "directory"
        )
    # By name: it stands above this package, and only who loads a trial has torch.
    return import_module("detslurm.pytorch").load_trial_from_checkpoint_path(str(path))
