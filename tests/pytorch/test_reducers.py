"""Metrics over many batches and ranks equal those of all the data at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm import InvalidHP
from detslurm.core import DistributedContext
from detslurm.errors import InvalidExperimentException
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


def validate(dist: DistributedContext) -> dict[str, Any]:
    """What a validation over all records finds on this rank."""
    reducers = Reducers()
    mean = reducers.wrap(Mean(), name="mean")
    extremes = reducers.wrap(Extremes())
    order = reducers.wrap(joined, name="all", for_training=False)
    reducers.wrap(Mean(), name="unused", for_validation=False)
    reducers.reset()
    loader = DataLoader(RECORDS, batch_size=4)
    for batch in loader.get_data_loader(num_replicas=dist.size, rank=dist.rank):
        mean.update(batch)  # type: ignore[attr-defined]
        extremes.update(batch)  # type: ignore[attr-defined]
        order.update(batch.tolist())  # type: ignore[attr-defined]
    return reduced(reducers, Phase.VALIDATION, dist.allgather)


def reduced(
    reducers: Reducers,
    phase: Phase,
    allgather: Callable[[Any], list[Any]] = lambda stuff: [stuff],
) -> dict[str, Any]:
    """The metrics over all ranks, one unless told otherwise."""
    return reducers.metrics(phase, allgather(reducers.contribution(phase)))


def test_other_ranks_get_values_and_no_more() -> None:
    """Tensors inside of what is sent keep their types; graphs and devices stay behind."""
    for sends in (True, False):
        reducers = Reducers(sends=sends)
        values = reducers.wrap(lambda values: sum(v["sum"][0] for v in values), name="sum")
        values.update({"sum": (torch.ones(2, requires_grad=True) * 2, 3)})  # type: ignore[attr-defined]
        ((sent,),) = reducers.contribution(Phase.TRAINING)
        assert sent["sum"][0].requires_grad is not sends and sent["sum"][1] == 3
        assert reduced(reducers, Phase.TRAINING)["sum"].tolist() == [2, 2]


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_uneven_shards(ranks: int) -> None:
    """Six batches over any number of ranks give every rank the metrics of the whole, and function
    reducers the values in their order."""
    for metrics in on_ranks(ranks, validate):
        assert not isinstance(metrics, Exception), metrics
        assert metrics["mean"] == pytest.approx(RECORDS.mean(), rel=1e-12)
        assert (metrics["low"], metrics["high"]) == (RECORDS.min(), RECORDS.max())
        assert metrics["all"] == RECORDS.tolist()
        assert set(metrics) == {"mean", "low", "high", "all"}


def test_phases_and_resets() -> None:
    """Training and validation have their own reducers, and begin anew on reset."""
    reducers = Reducers()
    both = reducers.wrap(sum, name="both")
    training = reducers.wrap(sum, name="training", for_validation=False)
    reducers.wrap(sum, name="validation", for_training=False)
    assert isinstance(both, FunctionReducer) and isinstance(training, FunctionReducer)
    both.update(1)
    training.update(2)
    assert reduced(reducers, Phase.TRAINING) == {"both": 1, "training": 2}
    reducers.reset()
    both.update(5)
    assert reduced(reducers, Phase.VALIDATION) == {"both": 5, "validation": 0}
    assert reduced(reducers, Phase.TRAINING) == {"both": 5, "training": 0}


def reduce_with(reducer: Any, name: str | None) -> dict[str, Any]:
    reducers = Reducers()
    reducers.wrap(reducer, name=name)
    return reduced(reducers, Phase.TRAINING)


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
                reducers.reset()
            reduced(reducers, Phase.TRAINING)
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
    assert all(isinstance(value, float) for value in metrics.values())
    assert by["max"].reduce(numbers) == max(numbers)


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor, int, np.asarray])
def test_kinds_of_values(kind: Callable[[int], Any]) -> None:
    """Numbers, arrays and tensors of batches may all be metrics, and reduce to plain numbers."""
    metrics = metrics_of([share_of([{"m": kind(2)}, {"m": kind(4)}], Reducer.AVG)], Reducer.AVG)
    assert metrics == {"m": 3} and isinstance(metrics["m"], float)


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [(Reducer.AVG, 1.75), (Reducer.SUM, 12), (Reducer.MAX, 3), (Reducer.MIN, 1)],
)
def test_arrays_are_reduced_to_numbers(reducer: Reducer, expected: float) -> None:
    """As in Determined; every batch weighs the same, whatever the length of its array."""
    batches = [torch.ones(1), torch.full((2,), 3).bfloat16(), [1, 1, 1], np.float32(2)]
    shares = [share_of([{"m": batch} for batch in batches[start::2]], reducer) for start in (0, 1)]
    found = metrics_of(shares, reducer)["m"]
    assert found == expected and isinstance(found, float)


def test_a_function_without_values_says_what_is_missing() -> None:
    """`max` of nothing is most often a reducer whose update() only one kind of batch calls."""
    reducers = Reducers()
    reducers.wrap(max, name="worst")
    with pytest.raises(RuntimeError, match=r"'worst'.*update\(\) was not called"):
        reducers.metrics(Phase.TRAINING, [reducers.contribution(Phase.TRAINING)])


MISTAKES: list[tuple[list[Any], EvaluationReducers, type[Exception], str]] = [
    ([{"a": 1}], {"b": Reducer.AVG}, InvalidExperimentException, "exactly the metrics"),
    ([{"a": 1}], cast(Any, "max"), TypeError, "must return a pytorch.Reducer.*'max'"),
    ([{"a": "x"}], Reducer.AVG, TypeError, "metric 'a' is 'x'; .*wrap_reducer"),
    ([{"a": 1}, {"a": None}], Reducer.SUM, TypeError, "metric 'a' is None"),
    ([{"a": torch.empty(0)}], Reducer.MAX, TypeError, "metric 'a' is tensor"),
]


@pytest.mark.parametrize(("outputs", "reducers", "kind", "says"), MISTAKES)
def test_mistakes(
    outputs: list[Any], reducers: EvaluationReducers, kind: type[Exception], says: str
) -> None:
    """What can't be reduced says what evaluate_batch() or evaluation_reducer() must do."""
    with pytest.raises(kind, match=says):
        metrics_of([share_of(outputs, reducers)], reducers)
