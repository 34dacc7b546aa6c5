"""The class that model code derives from."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from detslurm.pytorch._base_trial import BaseTrial, by_name, takes
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._data import DataLoader, TorchData


class PyTorchTrial(BaseTrial):
    """Models, optimizers, data, and what to do with one batch; derive from it. The Trainer does the
    rest.

    In `__init__` make models, optimizers and schedulers and wrap them with `context.wrap_model()`,
    `wrap_optimizer()` and `wrap_lr_scheduler()`: checkpoints hold wrapped objects alone.

    Args:
        context: The result of `pytorch.init()`.
    """

    trial_context_class = PyTorchTrialContext
    _home = "detslurm.pytorch"

    @classmethod
    def _of_init(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        optimizations = config.get("optimizations") or {}
        return {"aggregation_frequency": optimizations.get("aggregation_frequency") or 1}

    @abc.abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None:
        pass

    @abc.abstractmethod
    def train_batch(
        self, batch: TorchData, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train on one batch: forward, `context.backward()`, `context.step_optimizer()`.

        Args:
            batch: A batch of the training data, on this slot's device.
            epoch_idx: The epoch, counted from 0 at the start of training.
            batch_idx: The batch, counted from 0 at the start of training, as this slot sees them.

        Returns:
            Metrics by name; a bare tensor is the metric `loss`.
        """

    @abc.abstractmethod
    def build_training_data_loader(self) -> DataLoader:
        """Return the data to train on."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> DataLoader:
        """Return the data to validate on."""

    def evaluate_batch(self, batch: TorchData, batch_idx: int) -> dict[str, Any]:
        """Return validation metrics of one batch. Override this or `evaluate_full_dataset()`.

        Args:
            batch: A batch of the validation data, on this slot's device.
            batch_idx: The batch, counted from 0 in each validation.
        """
        raise NotImplementedError


def evaluate_batch_of(trial: PyTorchTrial) -> Callable[..., Any]:
    """`evaluate_batch()`, to be called with the batch and its number; older code has it without."""
    method: Callable[..., Any] = trial.evaluate_batch
    if takes(method, None, None) or "batch_idx" in inspect.signature(method).parameters:
        return by_name(method, "batch", "batch_idx")
    return lambda batch, batch_idx: method(batch)
