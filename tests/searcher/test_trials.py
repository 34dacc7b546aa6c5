"""Samples and grids against the reference vectors and tables of the original."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.searcher import Grid, trial_count
from detslurm.searcher.sampling import Samples

SPACE = {
    "c": {"type": "const", "val": 7},
    "drop": {"type": "double", "minval": 0.1, "maxval": 0.5},
    "layers": {"type": "int", "minval": 1, "maxval": 6},
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "opt": {"type": "categorical", "vals": ["sgd", "adam", "lamb"]},
}

# seed, index, drop, layers, lr, opt, request id, trial seed
VECTORS = [
    (0, 0, 0.3195254015709299, 6, 0.03410336598413757, "adam",
     "d3dea19f-1551-49a5-b2d6-666224b70570", 1277901399),
    (0, 1, 0.4567092003128319, 1, 0.0006576107192827539, "adam",
     "e67daeca-274a-4acf-97a8-6587aec8df7a", 292249176),
    (0, 2, 0.25711391844033193, 2, 0.00016334587611069497, "adam",
     "9497eea5-7308-4d05-9013-455ef39226d5", 1963466437),
    (42, 0, 0.249816047538945, 5, 0.000355062142707077, "sgd",
     "142ccb98-66d6-4027-b918-2272d241ef27", 429389014),
    (42, 1, 0.12323344486727979, 5, 0.006358358856676252, "lamb",
     "95064505-34fd-400e-8103-4cf857e9d4b8", 1427830251),
    (1234, 0, 0.17660778015155693, 6, 0.0020567581032456058, "sgd",
     "f9d777c5-8f7e-4cc7-b1da-54dc17a1c845", 646980841),
]  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"seed{v[0]}-{v[1]}")
def test_random_samples_equal_the_reference_vectors(vector: tuple[Any, ...]) -> None:
    """The same seed gives the samples, request ids and trial seeds that Determined gave."""
    seed, index, drop, layers, lr, opt, request_id, trial_seed = vector
    plan = Samples({"name": "random"}, SPACE, seed).plan(index)
    assert plan.hparams == {
        "c": 7, "drop": drop, "layers": layers, "lr": pytest.approx(lr, rel=1e-15), "opt": opt,
    }  # fmt: skip
    assert (plan.request_id, plan.seed) == (request_id, trial_seed)


def test_nested_samples_depend_on_the_seed_alone() -> None:
    """Two spaces that differ only in the order of nested keys give the same sample."""
    a = {"x": {"p": SPACE["drop"], "q": SPACE["layers"]}, "y": SPACE["opt"]}
    b = {"y": SPACE["opt"], "x": {"q": SPACE["layers"], "p": SPACE["drop"]}}
    one, other = Samples({"name": "random"}, a, 3), Samples({"name": "random"}, b, 3)
    assert [one.plan(i) for i in range(3)] == [other.plan(i) for i in range(3)]


def _int(low: int, high: int, count: int) -> dict[str, Any]:
    return {"type": "int", "minval": low, "maxval": high, "count": count}


def test_grid_is_taken_from_its_end() -> None:
    """The first trial has the largest values and the last axis changes fastest."""
    grid = Grid({"1": _int(0, 20, 3), "2": _int(0, 10, 3)})
    points = [grid.point(i) for i in range(len(grid))]
    pairs = [(p["1"], p["2"]) for p in reversed(points)]
    assert pairs == [(a, b) for a in (0, 10, 20) for b in (0, 5, 10)]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (_int(0, 4, 5), [0, 1, 2, 3, 4]),
        (_int(0, 4, 100), [0, 1, 2, 3, 4]),
        (_int(-3, 3, 3), [-3, 0, 3]),
        (_int(0, 4, 1), [2]),
        (_int(-3, 0, 3), [-3, -2, 0]),
        (_int(-2, 1, 1), [-1]),
        (_int(2**60, 2**60 + 99, 3), [2**60, 2**60 + 50, 2**60 + 99]),
        ({"type": "double", "minval": 0.0, "maxval": 1.0, "count": 3}, [0.0, 0.5, 1.0]),
        ({"type": "double", "minval": 0.0, "maxval": 1.0, "count": 1}, [0.5]),
        ({"type": "log", "base": 10, "minval": 1, "maxval": 2, "count": 2}, [10, 100]),
        ({"type": "categorical", "vals": ["a", None, [1]]}, ["a", None, [1]]),
        ({"type": "const", "val": 3}, [3]),
        ([1, 2], [[1, 2]]),
        ({}, [{}]),
    ],
)
def test_an_axis_of_the_grid_has_the_documented_values(axis: Any, values: list[Any]) -> None:
    """Counts are clamped to the integers there are, a count of 1 is the midpoint."""
    grid = Grid({"x": axis})
    assert [grid.point(i)["x"] for i in reversed(range(len(grid)))] == values


def test_the_nested_product_is_full() -> None:
    """A nested space gives every combination exactly once."""
    two = {"type": "categorical", "vals": [0, 1]}
    space = {"a": two, "n": {"b": two, "m": {"c": two, "d": two}}}
    grid = Grid(space)
    points = {repr(grid.point(i)) for i in range(len(grid))}
    assert len(grid) == len(points) == 16
    assert grid.point(0) == {"a": 1, "n": {"b": 1, "m": {"c": 1, "d": 1}}}
    assert trial_count({"name": "grid"}, space) == 16


def test_grid_trials_consume_only_id_and_seed() -> None:
    """A grid trial's seed is that of the stream without any samples drawn."""
    grid = Samples({"name": "grid"}, {"x": _int(0, 4, 5)}, 0).plan(2)
    constant = Samples({"name": "random"}, {"x": 1}, 0).plan(2)
    assert (grid.seed, grid.request_id) == (constant.seed, constant.request_id)


def test_samples_are_the_same_in_whatever_order_they_are_asked_for() -> None:
    """A trial's sample lies behind those before it in the stream, drawn or passed over."""
    space = {
        "one": {"type": "int", "minval": 3, "maxval": 3},
        "eight": {"type": "int", "minval": 0, "maxval": 7},
        "wide": {"type": "int", "minval": 0, "maxval": 2**40},
        "n": {"only": {"type": "categorical", "vals": ["x"]}, "e": {}, "const": [1, 2]},
        **SPACE,
    }
    in_order = Samples({"name": "random"}, space, 9)
    expected = [in_order.plan(i) for i in range(40)]
    for order in (reversed(range(40)), [39, 3, 4, 5, 39, 0, 20]):
        samples = Samples({"name": "random"}, space, 9)
        for index in order:
            assert samples.plan(index) == expected[index]
