"""Loading a checkpoint into this process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from detslurm.sdk.errors import LifecycleError


@contextmanager
def where_it_is(path: Path | None, download: Callable[[Path], Path]) -> Iterator[Path]:
    """The directory with its files; of a bucket's a copy, while the block lasts."""
    if path is None:
        with tempfile.TemporaryDirectory() as folder:
            yield download(Path(folder) / "checkpoint")
    elif not path.is_dir():
        raise LifecycleError(f"the files of a checkpoint are gone: {path}")
    else:
        yield path


def load_trial(path: Path) -> Any:
    """The trial that a `PyTorchTrial` saved."""
    if not (path / "load_data.json").exists():
        raise LifecycleError(
            f"{path} is not a PyTorchTrial's checkpoint: load(loader) calls a function with its "
            "directory"
        )
    # By name: it stands above this package, and only who loads a trial has torch.
    return import_module("detslurm.pytorch").load_trial_from_checkpoint_path(str(path))
