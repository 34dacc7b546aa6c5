"""Points and priors outside of the search space are refused before anything queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.config import ConfigErrors, load_experiment

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
    "opt": {
        "momentum": {"type": "double", "minval": 0.5, "maxval": 1},
        "layers": {"type": "int", "minval": 1, "maxval": 8},
    },
    "kind": {"type": "categorical", "vals": [1, True, "adam", [1, 2]]},
    "api_key": {"type": "categorical", "vals": ["hunter22", "hunter23"]},
    "batch": 32,
}


def problems(name: str = "random", space: Any = SPACE, **searcher: Any) -> str:
    """The text of the errors; empty without any."""
    fields = {"name": name, "metric": "loss", **({"max_trials": 2} if name == "random" else {})}
    try:
        load_experiment(
            {"entrypoint": "true", "searcher": fields | searcher, "hyperparameters": space}
        )
    except ConfigErrors as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "point",
    [
        {},
        {"lr": 0.0001, "opt": {"momentum": 1}, "opt.layers": 8, "batch": 32},
        {"kind": [1, 2]},
        {"kind": 1.0},
        {"trial": 31},
    ],
)
def test_points_of_the_space(point: dict[str, Any]) -> None:
    assert problems(first=[point]) == ""


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ({"lr": 5}, "first[0].lr: a number from 0.0001 to 0.1 is expected, found 5"),
        ({"opt": {"layers": 3.0}}, "opt.layers: an integer from 1 to 8 is expected, found 3.0"),
        ({"opt.layers": 9}, "opt.layers: an integer from 1 to 8 is expected, found 9"),
        ({"opt": 3}, "opt: a mapping of hyperparameters is expected, found 3"),
        ({"opt": {"momentum": True}}, "a number from 0.5 to 1 is expected, found true"),
        ({"kind": "sgd"}, 'one of [1, true, "adam", [1, 2]] is expected, found the text "sgd"'),
        ({"batch": 16}, "the constant 32 is expected, found 16"),
        ({"opt.momentun": 0.9}, 'no hyperparameter "opt.momentun"; did you mean "opt.momentum"?'),
        ({"opt": {"layers": 2}, "opt.layers": 2}, "another key is for this hyperparameter"),
        ({"trial": 31, "lr": 0.01}, "{trial: N} takes the hyperparameters of trial N, and stands"),
        ({"trial": "31"}, 'the id of a trial is expected, found the text "31"'),
        (7, "first[0]: a mapping is expected, found 7"),
    ],
)
def test_a_point_outside_of_the_space(point: Any, expected: str) -> None:
    assert expected in problems(first=[point])


def test_a_hyperparameter_may_be_called_trial() -> None:
    space = {"trial": {"type": "int", "minval": 1, "maxval": 5}}
    assert problems(space=space, first=[{"trial": 3}]) == ""
    assert "an integer from 1 to 5 is expected, found 31" in problems(
        space=space, first=[{"trial": 31}]
    )


def test_a_secret_is_not_shown() -> None:
    found = problems(first=[{"api_key": "hunter21"}])
    assert "api_key: one of" in found
    assert "hunter" not in found


def test_the_place_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "entrypoint: 'true'\n"
        "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
        "searcher:\n"
        "  {name: random, metric: loss, max_trials: 2, first: [{lr: 0.5},\n"
        "    {lr: 2}]}\n"
    )
    with pytest.raises(ConfigErrors, match=r"bad.yaml:5:6: searcher.first\[1\].lr: a number from"):
        load_experiment(path)


@pytest.mark.parametrize(
    ("name", "fields", "most"),
    [
        ("random", {}, "max_trials allows 2 trials"),
        ("single", {}, "the searcher single allows 1 trial; remove points"),
        ("optuna", {"max_trials": 1}, "max_trials allows 1 trial"),
        ("pbt", {"population_size": 2, "num_rounds": 1, "length_per_round": 1}, "population_size"),
    ],
)
def test_more_points_than_trials(name: str, fields: dict[str, Any], most: str) -> None:
    assert most in problems(name, first=[{"lr": 0.01}] * 3, **fields)
    assert problems(name, first=[{"lr": 0.01}], **fields) == ""


def test_beliefs_of_the_space() -> None:
    prior = {"lr": {"about": 0.001}, "opt": {"layers": {"about": 3, "confidence": "low"}}}
    assert problems(prior=prior | {"kind": {"about": "adam", "confidence": "high"}}) == ""


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        ({"lr": {"about": 5}}, "prior.lr: a number from 0.0001 to 0.1 is expected as about"),
        ({"lr": 0.01}, "prior.lr: a mapping with about is expected, found 0.01; such as"),
        ({"lr": {"confidence": "low"}}, "a mapping with about is expected"),
        ({"lr": {"about": 0.01, "sure": 1}}, 'there is no key "sure" here'),
        ({"lr": {"about": 0.01, "confidence": "sure"}}, "one of low, medium, high is expected"),
        ({"batch": {"about": 32}}, "prior.batch: a constant needs no prior"),
        ({"opt": {"layer": {"about": 3}}}, 'no hyperparameter "opt.layer"; did you mean'),
        ({"opt": 1}, "prior.opt: a mapping with about is expected"),
        ({"opt.layers": {"about": 3}, "opt": {"layers": {"about": 3}}}, "another entry is for"),
    ],
)
def test_a_belief_outside_of_the_space(prior: Any, expected: str) -> None:
    assert expected in problems(prior=prior)


@pytest.mark.parametrize("name", ["grid", "single", "optuna"])
def test_searchers_without_a_prior_name_those_with_one(name: str) -> None:
    fields = {"max_trials": 2} if name == "optuna" else {}
    found = problems(name, prior={"lr": {"about": 0.01}}, **fields)
    assert f'searcher "{name}" has no field "prior"; it belongs to random' in found


@pytest.mark.parametrize("key", ["first", "prior"])
def test_a_custom_method_chooses_its_samples_itself(key: str) -> None:
    given = {"first": [{"lr": 0.01}], "prior": {"lr": {"about": 0.01}}}[key]
    assert f"searcher.{key}: the method of a custom search" in problems("custom", **{key: given})


ASHA = {"name": "adaptive_asha", "max_trials": 4, "max_length": {"batches": 8}}


@pytest.mark.parametrize(
    ("searcher", "expected"),
    [
        ({"name": "random"}, 'searcher "random" has no field "prior_experiments"; it belongs to'),
        (ASHA, "without a sampler this searcher draws samples at random; set sampler: tpe"),
        ({"name": "optuna", "sampler": "qmc"}, "Optuna's qmc takes no results of other exp"),
        ({"name": "optuna", "pruner": "hyperband"}, "the pruner hyperband divides trials"),
        ({"name": "optuna", "constraints": {"gb": "<= 4"}}, "are compared by one metric"),
        ({"name": "custom"}, "the method of a custom search chooses all samples itself"),
        ({"name": "optuna", "sampler": "gp"}, ""),
        (ASHA | {"sampler": "tpe"}, ""),
    ],
)
def test_searchers_that_learn_from_other_experiments(
    searcher: dict[str, Any], expected: str
) -> None:
    trials = {} if searcher["name"] == "custom" else {"max_trials": 4}
    found = problems(**{**trials, **searcher, "prior_experiments": [7]})
    assert expected in found if expected else found == ""
