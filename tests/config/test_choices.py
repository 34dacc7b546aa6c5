"""Hyperparameters of type `choice` in a configuration: what is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detslurm.config import ConfigErrors, ExperimentConfig, load_experiment
from detslurm.config.arguments import arguments_of
from detslurm.config.schema.hyperparameters import Choice, Const, Double, Hyperparameters
from tests.searcher.conditional import OPTIMIZERS

RANGE = {"type": "double", "minval": 0, "maxval": 1}
RANDOM = {"name": "random", "metric": "loss", "max_trials": 4, "max_length": {"batches": 1}}
GRID = {"name": "grid", "metric": "loss"}


def config(space: Any, searcher: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "entrypoint": "python3 t.py",
        "searcher": searcher or RANDOM,
        "hyperparameters": space,
        **more,
    }


def problems(*args: Any, **more: Any) -> list[str]:
    try:
        load_experiment(config(*args, **more))
    except ConfigErrors as error:
        return [str(problem) for problem in error.problems]
    return []


def choice(*vals: Any) -> dict[str, Any]:
    return {"x": {"type": "choice", "vals": vals}}


def test_vals_are_what_hyperparameters_may_be() -> None:
    """Constants, ranges, groups and choices; what looks like a range in `const` stays data."""
    data = {"type": "const", "val": {"type": "double", "trial": 3}}
    given = choice(1, {"name": "a", "r": RANGE}, RANGE, data, choice(2, {"trial": 3})["x"])
    loaded = load_experiment(config(given))
    assert loaded.warnings == ()
    found = loaded.config.hyperparameters["x"]
    assert isinstance(found, Choice)
    assert found.vals[:3] == (
        Const(val=1),
        Hyperparameters(name=Const(val="a"), r=Double(minval=0, maxval=1)),
        Double(minval=0, maxval=1),
    )
    plain = loaded.config.to_dict()
    assert ExperimentConfig.from_dict(json.loads(json.dumps(plain))) == loaded.config


@pytest.mark.parametrize(
    ("space", "searcher", "expected"),
    [
        (choice(), {}, "hyperparameters.x.vals: at least one item is expected"),
        (choice(1, {"r": {"type": "double", "minval": 2, "maxval": 1}}), {},
         "hyperparameters.x.vals[1].r.minval: minval must be less than maxval"),
        (choice({"type": "duble", "minval": 0, "maxval": 1}), {},
         'hyperparameters.x.vals[0].type: one of "const", "int"'),
        (choice({"type": 3}), {}, "hyperparameters.x.vals[0].type: one of"),
        (choice(1, {"lr": {"min": 0, "max": 1}}), {},
         "hyperparameters.x.vals[1].lr: without a type this is a constant"),
        (choice(1, {"r": RANGE}), GRID,
         "hyperparameters.x.vals[1].r: grid search is in use but count was not provided"),
        (choice({"password": "a", "r": RANGE}, {"password": "b", "r": RANGE}), {},
         "hyperparameters.x.vals[1]: this val differs from an earlier one in secrets alone"),
        *[(OPTIMIZERS, {"name": "optuna", "sampler": sampler},
           f"searcher.sampler: {sampler} learns nothing of the ranges in the vals of"
           " hyperparameters.optimizer")
          for sampler in ("gp", "cmaes", "qmc", "nsgaii", "nsgaiii")],
    ],
)  # fmt: skip
def test_refused(space: Any, searcher: dict[str, Any], expected: str) -> None:
    found = problems(space, searcher if searcher is GRID else RANDOM | searcher)
    assert len(found) == 1 and expected in found[0], found


@pytest.mark.parametrize(
    ("space", "searcher"),
    [
        (OPTIMIZERS, {"name": "optuna", "sampler": "tpe"}),
        (choice(1, {"name": "a"}), {"name": "optuna", "sampler": "cmaes"}),  # no ranges in it
        (choice({"password": "a", "n": 1}, {"password": "b", "n": 2}), {}),
        (choice({"n": 1, "r": RANGE}, {"n": 1, "r": RANGE}), {}),
    ],
)
def test_taken(space: Any, searcher: dict[str, Any]) -> None:
    assert problems(space, RANDOM | searcher) == []


def test_points_of_a_grid_are_counted() -> None:
    """Those of all vals together: a million is the most."""
    many = {"type": "int", "minval": 1, "maxval": 10**9, "count": 500_000}
    assert problems(choice(many, {"n": many}), GRID) == []
    (found,) = problems(choice(1, many, {"n": many}), GRID)
    assert "the grid has 1000001 points" in found


def test_the_longest_val_has_to_fit() -> None:
    (found,) = problems(choice(1, {"name": "a", "text": "x" * 200_000}))
    assert "the hyperparameters of a trial take" in found


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ({"optimizer": {"name": "adam", "beta1": 0.9}, "lr": 0.1}, ""),
        ({"optimizer": {"name": "adam"}},
         "searcher.first[0].optimizer: one of the vals, with all that it holds: {name, beta1} or"
         " {name, momentum} is expected, found a mapping"),
        ({"optimizer": {"name": "adam", "beta1": 3}}, "from 0.8 to 1 as beta1 is expected"),
        ({"optimizer.beta1": 0.9}, 'no hyperparameter "optimizer.beta1"; give optimizer whole'),
    ],
)  # fmt: skip
def test_points_have_all_that_a_val_holds(point: dict[str, Any], expected: str) -> None:
    found = problems(OPTIMIZERS, RANDOM | {"first": [point]})
    assert expected in " ".join(found) and bool(found) == bool(expected)


TEMPLATE = "--lr={lr} --opt={optimizer.name} --beta1={optimizer.beta1} -m{optimizer.momentum}"


def test_arguments_leave_out_what_a_trial_has_not() -> None:
    """Of all forms; a template does so word by word."""
    adam = {"lr": 0.5, "optimizer": {"name": "adam", "beta1": 0.75}}
    sgd = {"lr": 0.5, "optimizer": {"name": "sgd", "momentum": 0}}
    for form, first, second in (
        ("flags", "--optimizer.name=adam --optimizer.beta1=0.75",
         "--optimizer.name=sgd --optimizer.momentum=0"),
        ("hydra", "optimizer.name=adam optimizer.beta1=0.75",
         "optimizer.name=sgd optimizer.momentum=0"),
        (TEMPLATE, "--opt=adam --beta1=0.75", "--opt=sgd -m0"),
    ):  # fmt: skip
        assert problems(OPTIMIZERS, arguments=form) == []
        assert " ".join(arguments_of(form, adam)[1:]) == first
        assert " ".join(arguments_of(form, sgd)[1:]) == second
    with pytest.raises(ValueError, match="no hyperparameter wd"):
        arguments_of("--wd={wd}", adam)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (TEMPLATE.replace("--beta1=", "--beta1 "),
         "some trials have no optimizer.beta1, and only a word that begins with - is left out;"
         " write the option and its value as one word, such as --beta1={optimizer.beta1}"),
        (TEMPLATE.replace("-m{optimizer.momentum}", ""), "leaves out optimizer.momentum"),
        ("--lr={lr} {optimizer.kind}", "there is no hyperparameter optimizer.kind"),
        ({"flags": {"separator": "_"}}, "both --optimizer_name"),
    ],
)  # fmt: skip
def test_arguments_refused(arguments: Any, expected: str) -> None:
    space = {**OPTIMIZERS, "optimizer_name": 1} if isinstance(arguments, dict) else OPTIMIZERS
    found = " ".join(problems(space, arguments=arguments))
    assert expected in found
