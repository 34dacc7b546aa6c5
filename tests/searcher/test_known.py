"""Searches that start from what is known: points that are tried first, and priors."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.config.points import entries
from detslurm.searcher import Search
from detslurm.searcher.hyperparameters import Grid
from detslurm.searcher.sampling import Samples
from detslurm.searcher.trials import trial_count
from tests.searcher.drive import run
from tests.searcher.spaces import SPACES, Space, dotted, is_in

SPACE: Space = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "opt": {
        "momentum": {"type": "double", "minval": 0.5, "maxval": 1.0},
        "layers": {"type": "int", "minval": 1, "maxval": 8},
        "name": {"type": "categorical", "vals": ["sgd", "adam", "lamb"]},
    },
    "batch": 32,
}
METHODS: dict[str, dict[str, Any]] = {
    "random": {"max_trials": 4},
    "async_halving": {"max_trials": 4, "num_rungs": 2, "max_length": {"batches": 8}},
    "adaptive_asha": {"max_trials": 4, "time_metric": "batches", "max_time": 8},
    "pbt": {"population_size": 4, "num_rounds": 1, "length_per_round": {"batches": 2}},
    "single": {"max_length": {"batches": 2}},
}


def samples(name: str, space: Space = SPACE, seed: int = 3, **searcher: Any) -> list[Any]:
    """The hyperparameters of the first trials of a search."""
    found = Samples({"name": name, **searcher}, space, seed)
    return [found.plan(index).hparams for index in range(12)]


@pytest.mark.parametrize("name", METHODS)
def test_points_are_tried_first_and_nothing_else_moves(name: str) -> None:
    """A point's missing values are the stream's, and later trials are as without points."""
    fields = {**METHODS[name], "metric": "loss"}
    points = [{"opt.momentum": 0.75, "opt": {"layers": 3}, "lr": 0.01}, {"opt.name": "adam"}]
    points = points[:1] if name == "single" else points

    def plans(**more: Any) -> list[Any]:
        config = {"searcher": {"name": name, **fields, **more}, "hyperparameters": SPACE}
        search = Search(config)
        state = run(search, lambda index, units: float(index), top=8)
        return [search.plan(state, index) for index in range(state.created)]

    plain, started = plans(), plans(first=points)
    changed = [dotted(plan.hparams) for plan in started]
    assert changed[0] == dotted(plain[0].hparams) | {
        "opt.momentum": 0.75, "opt.layers": 3, "lr": 0.01
    }  # fmt: skip
    if len(points) > 1:
        assert changed[1] == dotted(plain[1].hparams) | {"opt.name": "adam"}
    assert started[len(points) :] == plain[len(points) :]
    assert [plan.seed for plan in started] == [plan.seed for plan in plain]


def test_a_grid_follows_its_points_and_repeats_none() -> None:
    space = {
        "x": {"type": "double", "minval": 0.0, "maxval": 0.3, "count": 4},
        "y": {"type": "categorical", "vals": ["a", "b"]},
    }
    # 0.1 is on the grid as 0.09999999999999999; 0.15 is between its points; y is the grid's last.
    searcher = {"name": "grid", "first": [{"x": 0.1, "y": "a"}, {"x": 0.15}, {"y": "a", "x": 0}]}
    found, grid = Samples(searcher, space, 0), Grid(space)
    assert trial_count(searcher, space) == 9
    tried = [found.plan(index).hparams for index in range(9)]
    assert tried[:3] == [{"x": 0.1, "y": "a"}, {"x": 0.15, "y": "b"}, {"x": 0.0, "y": "a"}]
    rest = [grid.point(i) for i in range(8) if grid.index(grid.point(i)) not in (5, 7)]
    assert tried[3:] == rest
    assert [grid.index(grid.point(i)) for i in range(8)] == list(range(8))
    with pytest.raises(IndexError):
        found.plan(9)


def test_a_name_with_a_dot_of_its_own_comes_before_the_way_to_a_nested_one() -> None:
    space = {"a.b": {"type": "int", "minval": 0, "maxval": 9}, "a": {"b": 1, "c": {"d.e": 2}}}
    found = {
        entry.keys: entry.route for entry in entries(space, {"a.b": 1, "a.c.d.e": 2, "x.y": 3})
    }
    assert found == {("a.b",): ("a.b",), ("a.c.d.e",): ("a", "c", "d.e"), ("x.y",): None}


def test_a_prior_draws_half_of_the_samples_near_the_believed_values() -> None:
    """The others are those of the stream, and what has no prior is the stream's in all."""
    prior = {"lr": {"about": 1e-3, "confidence": "high"}, "opt.name": {"about": "adam"}}
    found = [Samples({"name": "random", "prior": p}, SPACE, 5) for p in ({}, prior)]
    plain, near = ([s.plan(i).hparams for i in range(400)] for s in found)
    moved = [(a, b) for a, b in zip(plain, near, strict=True) if a != b]
    assert 160 < len(moved) < 240
    distances = [abs(math.log10(b["lr"]) + 3) for _, b in moved]
    assert sum(d < 2 * 3 / 16 for d in distances) > 0.9 * len(moved)  # two standard deviations
    assert sum(b["opt"]["name"] == "adam" for _, b in moved) > 0.7 * len(moved)
    for a, b in moved:
        assert {**dotted(b), "lr": 0, "opt.name": ""} == {**dotted(a), "lr": 0, "opt.name": ""}


def test_a_point_counts_more_than_a_prior() -> None:
    prior, first = {"lr": {"about": 1e-3, "confidence": "high"}}, [{"lr": 0.1}] * 12
    assert {s["lr"] for s in samples("random", prior=prior, first=first)} == {0.1}


@given(space=SPACES, seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=200, deadline=None)
def test_priors_and_points_never_leave_the_space(space: Space, seed: int, data: Any) -> None:
    """Whatever is believed, at whatever end of a range."""
    plain = samples("random", space, seed)
    known = plain[data.draw(st.integers(0, 11))]
    confidence = st.sampled_from(["low", "medium", "high"])

    def believed(part: Any, inner: Any) -> Any:
        return {
            key: believed(spec, inner[key])
            if isinstance(spec, dict) and "type" not in spec
            else {"about": _any_value(data, spec, inner[key]), "confidence": data.draw(confidence)}
            for key, spec in part.items()
            if isinstance(spec, dict)
        }

    near = samples("random", space, seed, prior=believed(space, known), first=[known])
    assert near[0] == known
    assert all(is_in(space, sample) for sample in near)


def _any_value(data: Any, spec: dict[str, Any], drawn: Any) -> Any:
    """A possible value: one that was drawn, or an end."""
    if spec["type"] == "categorical":
        return drawn
    ends = [spec["minval"], spec["maxval"]]
    if spec["type"] == "log":
        ends = [spec["base"] ** float(end) for end in ends]
    return data.draw(st.sampled_from([drawn, *ends]))
