"""Metrics over many batches and ranks equal those of all the data at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm import InvalidHP
from detslurm.core import DistributedContext
from detslurm.pytorch._data import DataLoader
from detslurm.pytorch._evaluation import Reducers as EvaluationReducers
from detslurm.pytorch._evaluation import metrics_of, share_of
from detslurm.pytorch._reducer import FunctionReducer, MetricReducer, Phase, Reducer, Reducers
from tests.core.ranks import on_ranks

RECORDS = np.random.default_rng(0).normal(size=23)


class Mean(MetricReducer):
    """The mean of all records, whatever their batches."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, batch: Any) -> None:
        self.sum, self.count = self.sum + float(batch.sum()), self.count + len(batch)

    def per_slot_reduce(self) -> Any:
        return self.sum, self.count

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        sums, counts = zip(*per_slot_metrics, strict=True)
        return sum(sums) / sum(counts)


class Extremes(Mean):
    """Two metrics at once."""

    def reset(self) -> None:
        self.seen: list[float] = []

    def update(self, batch: Any) -> None:
        self.seen += batch.tolist()

    def per_slot_reduce(self) -> Any:
        return (min(self.seen), max(self.seen)) if self.seen else None

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        lows, highs = zip(*filter(None, per_slot_metrics), strict=True)
        return {"low": min(lows), "high": max(highs)}


def joined(values: list[Any]) -> list[float]:
    return [number for value in values for number in value]


def validate(dist: DistributedContext) -> tuple[dict[str, Any], int]:
    """What a validation over all records finds on this rank, and how often it spoke to others."""
    reducers = Reducers()
    mean = reducers.wrap(Mean(), name="mean")
    extremes = reducers.wrap(Extremes())
    order = reducers.wrap(joined, name="all", for_training=False)
    reducers.wrap(Mean(), name="unused", for_validation=False)
    reducers.reset(Phase.VALIDATION)
    loader = DataLoader(RECORDS, batch_size=4)
    for batch in loader.get_data_loader(num_replicas=dist.size, rank=dist.rank):
        mean.update(batch)  # type: ignore[attr-defined]
        extremes.update(batch)  # type: ignore[attr-defined]
        order.update(batch.tolist())  # type: ignore[attr-defined]
    calls: list[Any] = []

    class Counting:
        def allgather(self, stuff: Any) -> list[Any]:
            calls.append(stuff)
            return dist.allgather(stuff)

    return reducers.reduce(Phase.VALIDATION, Counting()), len(calls)


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_uneven_shards(ranks: int) -> None:
    """Six batches over any number of ranks give every rank the metrics of the whole, with one
    collective for all reducers, and function reducers the values in their order."""
    for found in on_ranks(ranks, validate):
        assert not isinstance(found, Exception), found
        metrics, calls = found
        assert calls == 1
        assert metrics["mean"] == pytest.approx(RECORDS.mean(), rel=1e-12)
        assert (metrics["low"], metrics["high"]) == (RECORDS.min(), RECORDS.max())
        assert metrics["all"] == RECORDS.tolist()
        assert set(metrics) == {"mean", "low", "high", "all"}


def test_phases_and_resets() -> None:
    """Training and validation have their own reducers, and begin anew on reset."""
    reducers = Reducers()
    both = reducers.wrap(sum, name="both")
    training = reducers.wrap(sum, name="training", for_validation=False)
    assert isinstance(both, FunctionReducer) and isinstance(training, FunctionReducer)
    both.update(1)
    training.update(2)
    one = Alone()
    assert reducers.reduce(Phase.TRAINING, one) == {"both": 1, "training": 2}
    reducers.reset(Phase.VALIDATION)
    both.update(5)
    assert reducers.reduce(Phase.VALIDATION, one) == {"both": 5}
    assert reducers.reduce(Phase.TRAINING, one) == {"both": 5, "training": 2}


class Alone:
    """A trial of one rank."""

    calls = 0

    def allgather(self, stuff: Any) -> list[Any]:
        self.calls += 1
        return [stuff]


def test_nothing_is_sent_without_reducers() -> None:
    """A phase without reducers costs no collective."""
    reducers = Reducers()
    reducers.wrap(sum, name="training", for_validation=False)
    alone = Alone()
    assert reducers.reduce(Phase.VALIDATION, alone) == {} and alone.calls == 0


def reduce_with(reducer: Any, name: str | None) -> dict[str, Any]:
    reducers = Reducers()
    reducers.wrap(reducer, name=name)
    return reducers.reduce(Phase.TRAINING, Alone())


def test_names_and_dicts() -> None:
    """A dict needs no name, and everything else needs one."""
    assert reduce_with(lambda values: {"a": 1}, None) == {"a": 1}
    with pytest.raises(AssertionError, match="name=None but it did not return a dict"):
        reduce_with(len, None)
    with pytest.raises(AssertionError, match="with name set but it returned a dict anyway"):
        reduce_with(lambda values: {"a": 1}, "a")
    with pytest.raises(TypeError, match="a MetricReducer or a function"):
        Reducers().wrap(3)  # type: ignore[arg-type]


class Broken(Mean):
    """Fails in one of its methods."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__()
        self.where, self.error = where, error
        setattr(self, where, self.fail)

    def fail(self, *args: Any) -> None:
        raise self.error


@pytest.mark.parametrize("where", ["reset", "per_slot_reduce", "cross_slot_reduce"])
def test_errors_name_the_reducer(where: str) -> None:
    """An error in a reducer says which one, and where; InvalidHP stays what it is."""
    for error, kind in [(KeyError("lost"), RuntimeError), (InvalidHP("no"), InvalidHP)]:
        reducers = Reducers()
        reducers.wrap(Broken(where, error), name="accuracy")
        with pytest.raises(kind) as caught:
            if where == "reset":
                reducers.reset(Phase.TRAINING)
            reducers.reduce(Phase.TRAINING, Alone())
        if kind is RuntimeError:
            assert f"Broken(name='accuracy') failed in {where}(): 'lost'" in str(caught.value)


values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


@given(values, st.integers(1, 6))
@settings(deadline=None)
def test_evaluation_metrics(numbers: list[float], ranks: int) -> None:
    """Averages, sums and extremes over all batches, however many each rank has."""
    by = {"avg": Reducer.AVG, "sum": Reducer.SUM, "max": Reducer.MAX, "min": Reducer.MIN}
    outputs = [dict.fromkeys(by, number) for number in numbers]
    metrics = metrics_of([share_of(outputs[rank::ranks], by) for rank in range(ranks)], by)
    assert metrics == {
        "avg": pytest.approx(sum(numbers) / len(numbers), rel=1e-9, abs=1e-6),
        "sum": pytest.approx(sum(numbers), rel=1e-9, abs=1e-6),
        "max": max(numbers),
        "min": min(numbers),
    }
    assert all(type(value) is float for value in metrics.values())
    assert by["max"].reduce(numbers) == max(numbers)


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor, int, np.asarray])
def test_kinds_of_values(kind: Callable[[int], Any]) -> None:
    """Numbers, arrays and tensors of batches may all be metrics, and reduce to plain numbers."""
    metrics = metrics_of([share_of([{"m": kind(2)}, {"m": kind(4)}], Reducer.AVG)], Reducer.AVG)
    assert metrics == {"m": 3} and type(metrics["m"]) is float


def test_arrays_reduce_elementwise() -> None:
    """A metric that is an array, as a confusion matrix, stays one."""
    outputs = [{"m": torch.eye(2)}, {"m": torch.ones(2, 2)}]
    found = metrics_of([share_of(outputs, Reducer.SUM)], Reducer.SUM)["m"]
    assert found.tolist() == [[2, 1], [1, 2]]


MISTAKES: list[tuple[list[Any], EvaluationReducers, type[Exception], str]] = [
    ([torch.zeros(1)], Reducer.AVG, TypeError, "must return a dict"),
    ([{"a": 1}, {"b": 1}], Reducer.AVG, ValueError, "same metrics for every batch"),
    ([{"a": 1}], {"b": Reducer.AVG}, ValueError, "exactly the metrics"),
    ([], Reducer.AVG, RuntimeError, "nothing to evaluate"),
]


@pytest.mark.parametrize(("outputs", "reducers", "kind", "says"), MISTAKES)
def test_mistakes(
    outputs: list[Any], reducers: EvaluationReducers, kind: type[Exception], says: str
) -> None:
    """What can't be reduced says what evaluate_batch() or evaluation_reducer() must do."""
    with pytest.raises(kind, match=says):
        metrics_of([share_of(outputs, reducers)], reducers)
