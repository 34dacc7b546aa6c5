"""The metrics of a validation, from what `evaluate_batch()` returned for every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from detslurm.pytorch._reducer import Reducer

Reducers = Reducer | Mapping[str, Reducer]
"""One for all metrics, or one for each."""

_COMBINE: dict[Reducer, Callable[..., Any]] = {
    Reducer.AVG: np.sum,  # divided by the batches of all ranks in the end
    Reducer.SUM: np.sum,
    Reducer.MAX: np.max,
    Reducer.MIN: np.min,
}


@dataclass(frozen=True)
class Share:
    """What one rank's batches add to the metrics; small, whatever their number."""

    batches: int
    partial: dict[str, Any]


def share_of(outputs: Sequence[Any], reducers: Reducers) -> Share:
    """Reduce what the batches of this rank gave.

    Raises `TypeError` for what is no dict, `ValueError` when batches have different metrics or
    `reducers` don't name exactly these.
    """
    if not outputs:
        return Share(0, {})
    _check_outputs(outputs)
    each = _reducer_of_each(list(outputs[0]), reducers)
    columns = {name: _column([output[name] for output in outputs]) for name in each}
    return Share(len(outputs), {name: _COMBINE[each[name]](columns[name], axis=0) for name in each})


def metrics_of(shares: Sequence[Share], reducers: Reducers) -> dict[str, Any]:
    """The metrics over all ranks; an average weighs every batch the same, wherever it was.

    Raises `RuntimeError` when no rank had a batch.
    """
    shares = [share for share in shares if share.batches]
    if not shares:
        raise RuntimeError("the validation data is empty: there is nothing to evaluate")
    each = _reducer_of_each(list(shares[0].partial), reducers)
    return {name: _combined(name, each[name], shares) for name in each}


def _combined(name: str, reducer: Reducer, shares: Sequence[Share]) -> Any:
    value = _COMBINE[reducer](np.stack([share.partial[name] for share in shares]), axis=0)
    if reducer is Reducer.AVG:
        value = value / sum(share.batches for share in shares)
    return value.item() if np.ndim(value) == 0 else value


def _check_outputs(outputs: Sequence[Any]) -> None:
    for output in outputs:
        if not isinstance(output, dict):
            raise TypeError(
                f"evaluate_batch() must return a dict of metrics, not {type(output).__name__}"
            )
        if output.keys() != outputs[0].keys():
            raise ValueError(
                "evaluate_batch() must return the same metrics for every batch: "
                f"{sorted(output)} are not {sorted(outputs[0])}"
            )


def _reducer_of_each(names: Sequence[str], reducers: Reducers) -> dict[str, Reducer]:
    if isinstance(reducers, Reducer):
        return dict.fromkeys(names, reducers)
    if set(reducers) != set(names):
        raise ValueError(
            f"evaluation_reducer() must name exactly the metrics of evaluate_batch(): it has "
            f"{sorted(reducers)}, they are {sorted(names)}"
        )
    return {name: reducers[name] for name in names}


def _column(values: list[Any]) -> np.ndarray[Any, Any]:
    if all(isinstance(value, torch.Tensor) for value in values):
        # One transfer from the device for all batches.
        stacked = torch.stack([value.detach() for value in values]).cpu()
        # Sums of many batches in single precision are bad ones.
        column: np.ndarray[Any, Any] = (
            stacked.double() if stacked.is_floating_point() else stacked
        ).numpy()
        return column
    return np.stack([np.asarray(_on_host(value)) for value in values])


def _on_host(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
