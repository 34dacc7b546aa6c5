"""The metrics of a validation, from what `evaluate_batch()` returned for every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from detslurm.errors import InvalidExperimentException
from detslurm.pytorch._averages import array_of, is_numeric
from detslurm.pytorch._reducer import Reducer

Reducers = Reducer | Mapping[str, Reducer]
"""One for all metrics, or one for each."""

_OF_A_BATCH: dict[Reducer, Callable[[Any], Any]] = {
    Reducer.AVG: np.mean,
    Reducer.SUM: np.sum,
    Reducer.MAX: np.max,
    Reducer.MIN: np.min,
}
# An average is divided by the batches of all ranks in the end.
_OF_BATCHES = _OF_A_BATCH | {Reducer.AVG: np.sum}


@dataclass(frozen=True)
class Share:
    """One rank's contribution to the metrics; small, whatever the number of batches."""

    batches: int
    partial: dict[str, Any]


def share_of(outputs: Sequence[Any], reducers: Reducers) -> Share:
    """Reduce what the batches of this rank gave.

    Raises `TypeError` for anything but a dict of numbers, `ValueError` when batches have different
    metrics, `InvalidExperimentException` when `reducers` don't name exactly these.
    """
    if not outputs:
        return Share(0, {})
    _check_outputs(outputs)
    each = _reducer_of_each(list(outputs[0]), reducers)
    return Share(
        len(outputs),
        {
            name: _OF_BATCHES[reducer](_column(name, [o[name] for o in outputs], reducer))
            for name, reducer in each.items()
        },
    )


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
    value = _OF_BATCHES[reducer]([share.partial[name] for share in shares])
    return value / sum(share.batches for share in shares) if reducer is Reducer.AVG else value


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
    if not isinstance(reducers, Mapping):
        raise TypeError(
            "evaluation_reducer() must return a pytorch.Reducer, or a dict of these by metric, not"
            f" {reducers!r}"
        )
    if set(reducers) != set(names):
        raise InvalidExperimentException(
            f"evaluation_reducer() must name exactly the metrics of evaluate_batch(): it has "
            f"{sorted(reducers)}, they are {sorted(names)}"
        )
    return {name: reducers[name] for name in names}


def _column(name: str, values: list[Any], reducer: Reducer) -> np.ndarray[Any, Any]:
    """A number for each batch; arrays are reduced, too."""
    return np.stack([_OF_A_BATCH[reducer](_array(name, value)) for value in values])


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    array = array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    if not is_numeric(array):
        raise TypeError(
            f"evaluate_batch() must return numbers, but its metric {name!r} is {value!r}; for"
            " metrics of another kind there is context.wrap_reducer()"
        )
    # Sums of many batches in single precision are bad ones.
    return array.astype(np.float64) if array.dtype.kind == "f" else array
