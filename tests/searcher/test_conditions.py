"""Choices: hyperparameters that only some trials have, in every way that samples are made."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from detslurm.config.points import varying
from detslurm.config.secret_values import masked_sample, restored_sample
from detslurm.config.spaces import place_among
from detslurm.searcher import Grid, RandomStream, draw
from detslurm.searcher.hyperparameters import dimensions, draws_of, pass_over
from detslurm.searcher.optuna.bridge import Bridge
from detslurm.searcher.optuna.history import KnownTrial, TrialHistory
from detslurm.searcher.optuna.space import distributions, sample_of, to_params
from detslurm.searcher.pbt import explore
from detslurm.searcher.sampling import Samples
from tests.searcher.conditional import OPTIMIZERS, is_possible, points, spaces, whole_ranges
from tests.searcher.drive import run, search

INT = {"type": "int", "minval": 1, "maxval": 2}


def test_no_sample_is_impossible_and_passing_over_equals_drawing() -> None:
    """Of 10,000 random spaces: a sample is drawn, and passed over; then it is explored."""
    drawn, passed = RandomStream(1), RandomStream(1)
    for space in spaces(10_000):
        sample = draw(space, drawn)
        assert is_possible(space, sample), (space, sample)
        pass_over(draws_of(space), passed)
        assert passed.drawn == drawn.drawn, space
        explored = explore(space, sample, drawn, 0.3, 0.5)
        assert is_possible(space, explored), (space, sample, explored)
        passed.skip(drawn.drawn - passed.drawn)


def test_a_sample_is_the_same_whatever_was_asked_before() -> None:
    samples, behind = (Samples({"name": "random"}, OPTIMIZERS, 3) for _ in range(2))
    assert [samples.plan(index) for index in range(40)][39] == behind.plan(39)
    taken = Counter(samples.plan(index).hparams["optimizer"]["name"] for index in range(40))
    assert min(taken["adam"], taken["sgd"]) > 10


def test_a_space_has_the_dimensions_of_its_largest_sample() -> None:
    assert dimensions(OPTIMIZERS) == 4
    assert dimensions({"a": 1, "b": {"c": {"type": "const", "val": 2}}}) == 0


def test_a_grid_is_what_enumeration_gives() -> None:
    """Every point once, the last one first, for random spaces of up to 300 points."""
    grids = [(space, Grid(space)) for space in map(whole_ranges, spaces(300, seed=2))]
    small = [(space, grid) for space, grid in grids if len(grid) <= 300]
    assert len(small) > 100 < max(len(grid) for _, grid in small)
    for space, grid in small:
        assert [grid.point(n) for n in range(len(grid))] == points(space)[::-1]
        assert all(grid.point(grid.index(one) or 0) == one for one in points(space))
    with pytest.raises(IndexError, match="3 points; there is none with index 3"):
        Grid({"a": {"type": "choice", "vals": [1, {"b": 2}, 3]}}).point(3)


def test_optuna_gets_the_parameters_of_the_val_that_was_taken() -> None:
    """Its parameters give the sample back, for 500 random spaces; each distribution holds them."""
    for number, space in enumerate(spaces(500, seed=3)):
        sample = draw(space, RandomStream(number))
        params = to_params(space, json.loads(json.dumps(sample)))
        made = distributions(space, sample)
        assert list(made) == list(params)
        assert all(made[name]._contains(made[name].to_internal_repr(params[name])) for name in made)
        left = dict(params)
        again = sample_of(space, lambda name, _, left=left: left.pop(name))  # type: ignore[misc]
        assert not left and is_possible(space, again)
        assert to_params(space, again) == params


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("random", {"max_trials": 8, "max_length": {"epochs": 1}}),
        ("adaptive_asha", {"max_trials": 8, "max_length": {"epochs": 9}, "divisor": 3}),
        ("async_halving", {"max_trials": 8, "time_metric": "epochs", "max_time": 9,
                            "num_rungs": 2}),
        ("pbt", {"population_size": 6, "num_rounds": 3, "length_per_round": {"epochs": 1}}),
    ],
)  # fmt: skip
def test_every_method_takes_choices(name: str, fields: dict[str, Any]) -> None:
    chosen = search(name, OPTIMIZERS, **fields)
    state = run(chosen, lambda index, length: float(index), top=9)
    samples = [chosen.plan(state, index).hparams for index in range(state.created)]
    assert len(samples) >= 8 and all(is_possible(OPTIMIZERS, sample) for sample in samples)
    assert {sample["optimizer"]["name"] for sample in samples} == {"adam", "sgd"}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")  # Optuna 4
def test_a_model_of_results_chooses_inside_of_vals() -> None:
    """Halving with a sampler: the samples that Optuna chooses are possible, too."""
    searcher = {"name": "async_halving", "metric": "loss", "sampler": "tpe", "max_trials": 9}
    known = {
        index: KnownTrial(draw(OPTIMIZERS, RandomStream(index)), "complete", [(1, float(index))])
        for index in range(12)
    }
    events = Bridge(searcher, OPTIMIZERS, 1).suggest(TrialHistory(known), range(12, 30))
    samples = [event["hparams"] for event in events]
    assert all(is_possible(OPTIMIZERS, sample) for sample in samples)
    assert {sample["optimizer"]["name"] for sample in samples} == {"adam", "sgd"}


def test_points_and_priors_of_choices_never_leave_the_space() -> None:
    """A point is tried as it is; a belief in a val, and in what it holds, draws near it."""
    for number, space in enumerate(spaces(200, seed=4)):
        point = draw(space, RandomStream(number))
        routes = [route for route, _ in varying(space) if len(route) == 1]
        prior = {name: {"about": point[name]} for (name,) in routes}
        samples = Samples({"name": "random", "first": [point], "prior": prior}, space, number)
        assert samples.plan(0).hparams == point
        for index in range(1, 4):
            assert is_possible(space, samples.plan(index).hparams)
    adam = {"optimizer": {"about": {"name": "adam", "beta1": 0.99}, "confidence": "high"}}
    samples = Samples({"name": "random", "prior": adam}, OPTIMIZERS, 1)
    taken = [samples.plan(index).hparams["optimizer"] for index in range(60)]
    assert sum(one.get("beta1", 0) > 0.95 for one in taken) > 20
    grid = {"name": "grid", "first": [{"optimizer": "none"}]}
    small = {"optimizer": {"type": "choice", "vals": ["none", {"n": {**INT, "count": 2}}]}}
    found = Samples(grid, small, 0)
    assert [found.plan(n).hparams["optimizer"] for n in range(3)] == ["none", {"n": 2}, {"n": 1}]


def test_exploring_keeps_a_val_or_draws_all_of_it_anew() -> None:
    sample = {"lr": 0.01, "optimizer": {"name": "adam", "beta1": 0.9}}
    for seed in range(20):
        kept = explore(OPTIMIZERS, sample, RandomStream(seed), 0.0, 0.1)["optimizer"]
        assert kept["name"] == "adam" and kept["beta1"] in (0.81, pytest.approx(0.99))
    again = [explore(OPTIMIZERS, sample, RandomStream(seed), 1.0, 0.1) for seed in range(20)]
    assert {one["optimizer"]["name"] for one in again} == {"adam", "sgd"}


def test_which_val_a_value_came_from() -> None:
    """By names and constants, then by ranges; what code has changed is still of its val."""
    low, high = ({"x": {"type": "int", "minval": n, "maxval": n + 2}} for n in (0, 10))
    vals = [low, high, {"x": 1, "y": {"type": "choice", "vals": [None, {"z": True}]}}, 1, True]
    for value, place in (
        ({"x": 1}, 0),
        ({"x": 11}, 1),
        ({"x": 99}, 0),
        ({"x": 1, "y": {"z": True}}, 2),
        ({"x": 1, "y": {"z": 1}}, None),
        ({"x": 1, "y": None}, 2),
        (1, 3),
        (True, 4),
        ({"x": "text"}, None),
    ):
        assert place_among(vals, value) == place, value


def test_secrets_of_a_val_are_in_no_record_and_come_back() -> None:
    """Constants are masked, also below a choice below a group; what is drawn stays. Asterisks tell
    no val from one before it that can't have them."""
    token = "hf_" + "a1B2c3D4e5" * 3
    public = {"name": "a", "token": "none", "n": {"type": "int", "minval": 1, "maxval": 3}}
    vals = ["none", public, {**public, "token": token}, token, {"url": ["x", f"x:{token}@y"]}]
    space = {"data": {"source": {"type": "choice", "vals": vals}}}
    for seed in range(30):
        sample = draw(space, RandomStream(seed))
        masked = masked_sample(sample, space)
        if isinstance(sample["data"]["source"], dict):
            assert token not in json.dumps(masked)
            assert masked["data"]["source"].get("n") == sample["data"]["source"].get("n")
        assert restored_sample(masked, space) == sample
        assert masked_sample(masked, space) == masked
        place = place_among(vals, sample["data"]["source"])
        assert place_among(vals, masked["data"]["source"]) == place is not None
