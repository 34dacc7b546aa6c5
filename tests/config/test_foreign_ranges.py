"""Ranges in the form of other tools, which are constants here."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.config import ConfigErrors, load_experiment


def config(space: Any, **searcher: Any) -> dict[str, Any]:
    search = {"name": "random", "metric": "loss", "max_length": {"batches": 1}, "max_trials": 4}
    return {
        "name": "ranges",
        "entrypoint": "python3 train.py",
        "searcher": search | searcher,
        "hyperparameters": space,
        "slurm": {"slot_type": "cpu"},
    }


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ({"values": [16, 32]}, "{type: categorical, vals: [16, 32]}"),
        ({"grid_search": ["a"]}, '{type: categorical, vals: ["a"]}'),
        ({"_type": "choice", "_value": [1]}, "{type: categorical, vals: [1]}"),
        ({"min": 0, "max": 1}, "{type: int, minval: 0, maxval: 1}"),
        ({"min": 0.5, "max": 1, "q": 0.5}, "{type: double, minval: 0.5, maxval: 1}"),
        (
            {"min": "1e-4", "max": 0.1, "distribution": "log_uniform_values"},
            "{type: log, base: 10, minval: -4, maxval: -1}",
        ),
        ({"low": 1e-5, "high": 1e-1, "log": True}, "{type: log, base: 10, minval: -5, maxval: -1}"),
        ({"minval": 1, "maxval": 8, "count": 2}, "{type: int, minval: 1, maxval: 8}"),
    ],
)  # fmt: skip
def test_a_range_of_another_tool_is_an_error_that_names_ours(spec: Any, meant: str) -> None:
    """At any depth; a constant of the same shape is taken where its type says so."""
    for space in ({"lr": spec}, {"model": {"deep": spec}}, {"type": "adam", "lr": spec}):
        with pytest.raises(ConfigErrors) as caught:
            load_experiment(config(space))
        (problem,) = caught.value.problems
        assert "without a type this is a constant" in str(problem)
        assert f"for a range write {meant}" in str(problem)
    constant = {
        "lr": {"type": "const", "val": spec},
        "wd": {"type": "double", "minval": 0, "maxval": 1},
    }
    assert load_experiment(config(constant)).warnings == ()


@pytest.mark.parametrize(
    "space",
    [
        {"clip": {"min": {"type": "double", "minval": 0, "maxval": 1}, "max": 3}},
        {"clip": {"min": "low", "max": "high", "lr": {"type": "int", "minval": 0, "maxval": 1}}},
        {"model": {"width": 3}, "lr": {"type": "categorical", "vals": [1, 2]}},
    ],
)
def test_a_group_of_hyperparameters_is_left_alone(space: Any) -> None:
    """Names alone don't make a range."""
    assert load_experiment(config(space)).warnings == ()


def test_a_grid_refuses_ranges_in_lists() -> None:
    """They would be constants, also beside a hyperparameter that is called `type`."""
    lists = {"type": "cnn", "layers": [{"type": "int", "minval": 1, "maxval": 4}]}
    given = config(lists) | {"searcher": {"name": "grid", "metric": "loss"}}
    with pytest.raises(ConfigErrors, match=r"hyperparameters.layers\[0\]: grid search"):
        load_experiment(given)


def test_a_single_trial_samples_nothing() -> None:
    """Its mappings are constants, whatever they look like."""
    given = config({"clip": {"min": 0, "max": 1}}) | {
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    }
    assert load_experiment(given).warnings == ()


def test_a_search_over_one_point_is_named() -> None:
    """It may be meant: trials with different seeds."""
    (warning,) = load_experiment(config({"lr": 0.1})).warnings
    assert "all trials of the search have the same hyperparameters" in warning
    assert "they differ by their seed alone" in warning


def test_a_project_without_a_workspace() -> None:
    """The message names the key that is missing."""
    with pytest.raises(ConfigErrors, match="project stands without workspace"):
        load_experiment(config({"lr": 1}) | {"project": "digits"})


def test_steps_of_other_tools_lead_to_the_length() -> None:
    """The hint is the key that bounds the training here."""
    with pytest.raises(ConfigErrors, match=r"did you mean searcher\.max_length"):
        load_experiment(config({"lr": 1}, max_steps=100))
