"""Training metrics of a window of batches, and their averages over batches and ranks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from detslurm.pytorch._pytree import replaced

Partial = dict[str, tuple[float, int] | None]
"""Sum and number of a metric's values; None for what can't be averaged."""


class MetricsWindow:
    """The metrics of every batch since the last report; tensors on a device wait there.

    Between two batches little of Python is in the processor's caches, and numpy is not: the first
    call of it takes as long as all the rest of `add`. So arrays are made at the report.
    """

    def __init__(self) -> None:
        self._batches: list[dict[str, Any]] = []
        self._numbers: list[tuple[dict[str, Any], str]] = []

    def add(self, result: Any) -> None:
        """Take what `train_batch()` returned. Raises `TypeError` for anything but metrics."""
        if isinstance(result, torch.Tensor):
            result = {"loss": result}
        elif not isinstance(result, dict):
            raise TypeError(
                "train_batch() must return a dict of metrics, or a tensor that is the loss, not"
                f" {type(result).__name__}"
            )
        batch = {}
        for name, value in result.items():
            if isinstance(value, torch.Tensor) and value.is_cpu and value.dim() == 0:
                batch[name] = value.item()
                self._numbers.append((batch, name))
            else:
                batch[name] = kept(value)
        self._batches.append(batch)

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self) -> list[dict[str, Any]]:
        """The metrics by batch; tensors have become arrays."""
        for batch, name in self._numbers:
            batch[name] = np.array(batch[name])
        self._numbers.clear()
        waiting: dict[Any, list[tuple[dict[str, Any], str]]] = {}
        for batch in self._batches:
            for name, value in batch.items():
                if isinstance(value, torch.Tensor):
                    waiting.setdefault((value.device, value.dtype), []).append((batch, name))
        for places in waiting.values():  # one operation and one transfer for all
            together = torch.cat([batch[name].flatten() for batch, name in places]).double()
            for (batch, name), value in zip(places, together.tolist(), strict=True):
                batch[name] = np.full(batch[name].shape, value)
        return self._batches


def kept(value: Any) -> Any:
    """A value that later changes of the original don't reach, without waiting for a device unless
    it has several numbers."""
    if isinstance(value, dict | list | tuple):
        return replaced(value, lambda _, tensor: array_of(tensor).copy())
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1:
        return array_of(value).copy()
    if value.is_cpu:
        return np.array(value.item(), ndmin=value.dim())
    return value.detach().clone()


def kept_output(output: Any) -> Any:
    """The result of `evaluate_batch()`, `kept` where it is a dict of metrics."""
    if not isinstance(output, dict):
        return output
    return {name: kept(value) for name, value in output.items()}


def partial(batches: Sequence[dict[str, Any]]) -> Partial:
    """Sums over batches; an array counts as its mean, None not at all, nor is it an error."""
    sums: Partial = {}
    for batch in batches:
        for name, value in batch.items():
            so_far = sums.setdefault(name, (0, 0))
            if value is None:
                continue
            number = _number(value)
            if number is None or so_far is None:
                sums[name] = None
            else:
                sums[name] = so_far[0] + number, so_far[1] + 1
    return sums


def averages(partials: Sequence[Partial]) -> dict[str, Any]:
    """Averages over the batches of all ranks; None for anything but numbers, NaN if always None."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in partials for name in one):
        parts = [one[name] for one in partials if name in one]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            found[name] = None
        else:
            count = sum(part[1] for part in whole)
            found[name] = sum(part[0] for part in whole) / count if count else math.nan
    return found


def on_host(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The same metrics without tensors: a scalar is a number, others are arrays."""
    return {name: _plain(value) for name, value in metrics.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = array_of(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.item() if value.size == 1 else value
    return value


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's values on the host."""
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:  # numpy has none
        tensor = tensor.float()
    array: np.ndarray[Any, Any] = tensor.cpu().numpy()
    return array


_NUMBERS = float | int | np.number | np.bool_ | numbers.Real  # the abstract one last: it is slow


def _number(value: Any) -> float | None:
    if isinstance(value, np.ndarray) and value.size == 1 and is_numeric(value):
        return float(value.item())
    if isinstance(value, _NUMBERS):
        return float(value)
    if isinstance(value, np.ndarray | list | tuple):
        return _mean(value)
    return None


def _mean(values: Any) -> float | None:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths, odd objects
        return None
    return float(array.mean()) if is_numeric(array) else None


def is_numeric(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array has numbers in it, and nothing else."""
    return array.size > 0 and array.dtype.kind in "biuf"
