"""Training metrics of a stretch of batches, and their averages over batches and ranks."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Partial = dict[str, tuple[Any, int] | None]
"""Sum and number of a metric's values; None for what can't be averaged."""


class Stretch:
    """The metrics of every batch since the last report; tensors on a device wait there."""

    def __init__(self) -> None:
        self._batches: list[dict[str, Any]] = []

    def add(self, result: Any) -> None:
        """Take what `train_batch()` returned. Raises `TypeError` for what is no metric."""
        if isinstance(result, torch.Tensor):
            result = {"loss": result}
        elif not isinstance(result, dict):
            raise TypeError(
                "train_batch() must return a dict of metrics, or a tensor that is the loss, not"
                f" {type(result).__name__}"
            )
        self._batches.append({name: _kept(value) for name, value in result.items()})

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self) -> list[dict[str, Any]]:
        """The metrics by batch as numbers and arrays."""
        waiting = [
            (batch, name)
            for batch in self._batches
            for name, value in batch.items()
            if isinstance(value, torch.Tensor)
        ]
        if waiting:  # one transfer for all
            together = torch.stack([batch[name].double() for batch, name in waiting]).tolist()
            for (batch, name), value in zip(waiting, together, strict=True):
                batch[name] = value
        return self._batches


def _kept(value: Any) -> Any:
    """A value that later changes of the original don't reach, without waiting for a device."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1:
        return value.detach().cpu().numpy().copy()
    if value.device.type == "cpu":
        return value.item()
    return value.detach().clone().reshape(())


def partial(batches: Sequence[dict[str, Any]]) -> Partial:
    """Sums over batches; a value of None doesn't count."""
    sums: Partial = {}
    for batch in batches:
        for name, value in batch.items():
            if value is None:
                continue
            number = _number(value)
            so_far = sums.get(name, (0, 0))
            if number is None or so_far is None:
                sums[name] = None
            else:
                sums[name] = so_far[0] + number, so_far[1] + 1
    return sums


def averages(partials: Sequence[Partial]) -> dict[str, Any]:
    """Averages over the batches of all ranks; None where there is nothing to average."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in partials for name in one):
        parts = [one[name] for one in partials if name in one]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            found[name] = None
        else:
            found[name] = sum(part[0] for part in whole) / sum(part[1] for part in whole)
    return found


def on_host(metrics: dict[str, Any]) -> dict[str, Any]:
    """The same metrics without tensors: a scalar is a number, others are arrays."""
    return {name: _plain(value) for name, value in metrics.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return value.item() if value.size == 1 else value
    return value


def _number(value: Any) -> Any:
    if isinstance(value, numbers.Real | np.number | np.bool_):
        return float(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return value.astype(np.float64)
    return None
