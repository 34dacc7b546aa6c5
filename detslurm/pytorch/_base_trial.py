"""The common part of model code: data, callbacks, and how validation is measured."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._callback import PyTorchCallback
from detslurm.pytorch._data import data_length
from detslurm.pytorch._reducer import Reducer


class BaseTrial(abc.ABC):
    """The part of a trial that does not depend on what trains its models."""

    _home: ClassVar[str]
    """The module whose `init()` and `Trainer` train it."""

    @classmethod
    def _of_init(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a configuration for `init()`."""
        return {}

    @abc.abstractmethod
    def build_training_data_loader(self) -> Any:
        """Return the data to train on."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> Any:
        """Return the data to validate on."""

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks by name; by the name a callback finds its state in a checkpoint."""
        return {}

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how the metrics of all batches become one: for all metrics, or for each by
        name.
        """
        return Reducer.AVG

    def evaluate_full_dataset(self, data_loader: torch.utils.data.DataLoader) -> dict[str, Any]:
        """Return validation metrics of the whole data set, which the chief alone evaluates:
        `data_loader` is not split up among the slots.
        """
        raise NotImplementedError

    def get_batch_length(self, batch: Any) -> int:
        """Return the number of records in `batch`, as the data loader gives it; override it for
        batches of your own type.
        """
        return data_length(batch)


def evaluates_batches(trial: BaseTrial) -> bool:
    """Whether the trial evaluates by batch, not all at once.

    Raises `InvalidExperimentException` unless it overrides exactly one of the two methods.
    """
    by_batch = _overrides(type(trial), "evaluate_batch")
    at_once = _overrides(type(trial), "evaluate_full_dataset")
    if by_batch == at_once:
        raise InvalidExperimentException(
            f"{type(trial).__name__} must override exactly one of evaluate_batch() and"
            f" evaluate_full_dataset(), not {'both' if by_batch else 'none'}"
        )
    return by_batch


def _overrides(kind: type[BaseTrial], method: str) -> bool:
    ours = next(base for base in kind.__mro__ if base.__module__.startswith(__package__))
    return getattr(kind, method) is not getattr(ours, method)


def by_name(method: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """The method called with arguments of these names, as Determined does: an override may have
    them in another order. A method with names of its own gets them in this order."""
    if not takes(method, **dict.fromkeys(names)) or _in_order(method, names):
        return method
    return lambda *values: method(**dict(zip(names, values, strict=True)))


def _in_order(method: Callable[..., Any], names: tuple[str, ...]) -> bool:
    """Whether arguments by position are those of these names, whatever decorates the method."""
    found = list(inspect.signature(method, follow_wrapped=False).parameters.values())
    by_position = [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    return tuple(by_position[: len(names)]) == names


def takes(method: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether the method can be called with these arguments."""
    try:
        for follow in (True, False):  # a decorator may take less than what it shows
            inspect.signature(method, follow_wrapped=follow).bind(*args, **kwargs)
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    return True
