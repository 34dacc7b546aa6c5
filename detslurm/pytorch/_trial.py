"""The class that model code derives from."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from typing import Any

import torch

from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._callback import PyTorchCallback
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._data import DataLoader, TorchData, data_length
from detslurm.pytorch._reducer import Reducer


class PyTorchTrial(abc.ABC):
    """Models, optimizers, data, and what to do with one batch; derive from it. The Trainer does the
    rest.

    In `__init__` make models, optimizers and schedulers and wrap them with `context.wrap_model()`,
    `wrap_optimizer()` and `wrap_lr_scheduler()`: what is not wrapped is not saved in checkpoints.

    Args:
        context: What `pytorch.init()` gave.
    """

    trial_context_class = PyTorchTrialContext

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

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks by name; by the name a callback finds its state in a checkpoint."""
        return {}

    def evaluate_batch(self, batch: TorchData, batch_idx: int) -> dict[str, Any]:
        """Return validation metrics of one batch. Override this or `evaluate_full_dataset()`.

        Args:
            batch: A batch of the validation data, on this slot's device.
            batch_idx: The batch, counted from 0 in each validation.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of all batches become one: for all metrics, or for each by
        name.
        """
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader) -> dict[str, Any]:
        """Return validation metrics of the whole data set, which the chief alone evaluates.

        Args:
            data_loader: The validation data, not split up among the slots.
        """
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """Return the number of records in a batch; override it for batches of your own type.

        Args:
            batch: A batch as the data loader gives it.
        """
        return data_length(batch)


def evaluates_batches(trial: PyTorchTrial) -> bool:
    """Whether the trial evaluates by batch, not all at once.

    Raises `InvalidExperimentException` unless it overrides exactly one of the two methods.
    """
    kind = type(trial)
    by_batch = kind.evaluate_batch is not PyTorchTrial.evaluate_batch
    at_once = kind.evaluate_full_dataset is not PyTorchTrial.evaluate_full_dataset
    if by_batch == at_once:
        raise InvalidExperimentException(
            f"{kind.__name__} must override exactly one of evaluate_batch() and"
            f" evaluate_full_dataset(), not {'both' if by_batch else 'none'}"
        )
    return by_batch


def train_batch_of(trial: PyTorchTrial) -> Callable[..., Any]:
    """`train_batch()`, to be called with the batch, the epoch and the number of the batch."""
    return _by_name(trial.train_batch, "batch", "epoch_idx", "batch_idx")


def evaluate_batch_of(trial: PyTorchTrial) -> Callable[..., Any]:
    """`evaluate_batch()`, to be called with the batch and its number; older code has it without."""
    method: Callable[..., Any] = trial.evaluate_batch
    if _takes(method, None, None) or "batch_idx" in inspect.signature(method).parameters:
        return _by_name(method, "batch", "batch_idx")
    return lambda batch, batch_idx: method(batch)


def _by_name(method: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The method called with arguments of these names, as Determined does: an override may have
    them in another order. One that has names of its own gets them in this order."""
    if not _takes(method, **dict.fromkeys(names)):
        return method
    return lambda *values: method(**dict(zip(names, values, strict=True)))


def _takes(method: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    try:
        for follow in (True, False):  # a decorator may take less than what it shows
            inspect.signature(method, follow_wrapped=follow).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
