"""Loading a checkpoint into this process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.sdk.errors import LifecycleError

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint


def load(checkpoint: Checkpoint, loader: Callable[[Path], Any] | None) -> Any:
    """What a loader makes of the files, or of a copy of those in a bucket."""
    act, path = loader or _load_trial, checkpoint.path
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            return act(checkpoint.download(Path(folder) / "checkpoint"))
    if not path.is_dir():
        raise LifecycleError(f"the files of a checkpoint are gone: {path}")
    return act(path)


def _load_trial(path: Path) -> Any:
    """The trial that a `PyTorchTrial` saved."""
    if not (path / "load_data.json").exists():
        raise LifecycleError(
            f"{path} is not a PyTorchTrial's checkpoint: load(loader) calls a function with its "
            "directory"
        )
    # By name: it stands above this package, and only who loads a trial has torch.
    return import_module("detslurm.pytorch").load_trial_from_checkpoint_path(str(path))
