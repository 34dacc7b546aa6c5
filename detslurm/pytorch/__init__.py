"""PyTorch training: write a `PyTorchTrial`, and the `Trainer` runs, saves and resumes it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from detslurm._base.lazy import lazy_names

if TYPE_CHECKING:
    from detslurm.pytorch import experimental, samplers
    from detslurm.pytorch._callback import PyTorchCallback
    from detslurm.pytorch._context import PyTorchExperimentalContext, PyTorchTrialContext
    from detslurm.pytorch._data import (
        DataLoader,
        TorchData,
        adapt_batch_sampler,
        data_length,
        to_device,
    )
    from detslurm.pytorch._init import init
    from detslurm.pytorch._lr_scheduler import LRScheduler
    from detslurm.pytorch._reducer import MetricReducer, Reducer
    from detslurm.pytorch._trainer import Trainer
    from detslurm.pytorch._trial import PyTorchTrial
    from detslurm.pytorch._units import Batch, Epoch, TrainUnit
    from detslurm.pytorch.checkpointing._load import (
        CheckpointLoadContext,
        load_trial_from_checkpoint_path,
    )

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "experimental",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]

_HOMES = {
    "_callback": ("PyTorchCallback",),
    "_context": ("PyTorchExperimentalContext", "PyTorchTrialContext"),
    "_data": ("DataLoader", "TorchData", "adapt_batch_sampler", "data_length", "to_device"),
    "_init": ("init",),
    "checkpointing._load": ("CheckpointLoadContext", "load_trial_from_checkpoint_path"),
    "_lr_scheduler": ("LRScheduler",),
    "_reducer": ("MetricReducer", "Reducer"),
    "_trainer": ("Trainer",),
    "_trial": ("PyTorchTrial",),
    "_units": ("Batch", "Epoch", "TrainUnit"),
}
_load = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    # Loaded on first use: `detslurm.pytorch.samplers` alone, or a launcher that checks whether this
    # package is there, needn't pay for torch.
    if name in ("experimental", "samplers"):
        return importlib.import_module(f"detslurm.pytorch.{name}")
    return _load(name)


def __dir__() -> list[str]:
    return sorted(__all__)
