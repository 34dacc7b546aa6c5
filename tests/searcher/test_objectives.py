"""Pareto fronts, ranks and constraints equal their definitions, worked out by brute force."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.config import ConfigErrors, load_experiment
from detslurm.searcher.objectives import (
    WORST_RESULT,
    Objectives,
    Result,
    add_to_fronts,
    best_first,
    dominates,
    front,
    fronts,
)

TWO = [{"name": "loss"}, {"name": "accuracy", "smaller_is_better": False}]
SECTION = {"name": "random", "max_trials": 8, "metrics": TWO, "constraints": {"gb": "<= 40"}}

# Few values, so that ties, equal results and broken constraints are common.
VALUES = st.sampled_from([0, 1, 1.5, 2, -1, 41, 1e308, -1e308, math.nan, math.inf, -math.inf]) | (
    st.sampled_from([None, True, "0.5", [1.0]])
)
NAMES = ("loss", "accuracy", "size", "gb", "s")
WHOLE = st.fixed_dictionaries({name: st.integers(0, 4) for name in NAMES})
REPORTS = st.lists(
    WHOLE | WHOLE | st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=4, max_size=24
)
SECTIONS = st.fixed_dictionaries(
    {
        "metrics": st.sampled_from([TWO, TWO[:1], [*TWO, {"name": "size"}]]),
        "constraints": st.sampled_from([{}, {"gb": "<= 40"}, {"gb": "< 1", "s": ">= 1.5"}]),
    }
)


def whole(section: dict[str, Any], report: dict[str, Any]) -> bool:
    """Whether a report has a finite number for all that the section names."""
    names = [metric["name"] for metric in section["metrics"]] + list(section["constraints"])
    return all(
        isinstance(report.get(n), float | int)
        and not isinstance(report[n], bool)
        and math.isfinite(report[n])
        for n in names
    )


def broken(section: dict[str, Any], report: dict[str, Any]) -> float:
    """The amounts by which a report breaks constraints; infinite if it lacks a number."""
    if not whole(section, report):
        return math.inf
    total = 0.0
    for name, text in section["constraints"].items():
        operator, limit = text.split()
        value, bound = report[name], float(limit)
        kept = {"<=": value <= bound, "<": value < bound, ">=": value >= bound}[operator]
        total += 0.0 if kept else max(abs(value - bound), math.ulp(0.0))
    return total


def beats(section: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The definition of domination, on reports."""
    if broken(section, one) or broken(section, other):
        return broken(section, one) < broken(section, other)
    signs = [(m["name"], 1 if m.get("smaller_is_better", True) else -1) for m in section["metrics"]]
    pairs = [(sign * one[name], sign * other[name]) for name, sign in signs]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def peeled(section: dict[str, Any], reports: list[dict[str, Any]]) -> list[list[int]]:
    """Ranks by their definition: take away what nothing dominates, again and again."""
    left, found = list(range(len(reports))), []
    while left:
        best = [i for i in left if not any(beats(section, reports[j], reports[i]) for j in left)]
        found.append(best)
        left = [i for i in left if i not in best]
    return found


@settings(max_examples=300)
@given(SECTIONS, REPORTS)
def test_fronts_and_ranks_equal_brute_force(
    section: dict[str, Any], reports: list[dict[str, Any]]
) -> None:
    objectives = Objectives.of(section)
    results = [objectives.result(report) for report in reports]
    expected = peeled(section, reports)
    assert fronts(results) == expected
    kept = [i for i in expected[0] if not broken(section, reports[i])] if expected else []
    assert front(results) == kept
    added: list[list[int]] = []
    for index in range(len(results)):
        add_to_fronts(added, index, results.__getitem__)
        assert added == fronts(results[: index + 1])
    order = list(best_first(added, results.__getitem__))
    assert sorted(order) == list(range(len(results)))
    ranks = {index: rank for rank, one in enumerate(expected) for index in one}
    assert [ranks[i] for i in order] == sorted(ranks.values())
    assert order == list(best_first(expected, results.__getitem__))


def test_a_result_without_a_number_is_the_worst_and_a_broken_constraint_comes_before_it() -> None:
    objectives = Objectives.of(SECTION)
    assert objectives.names == ("loss", "accuracy", "gb")
    reports: list[dict[str, Any]] = [
        {"loss": 0.0, "accuracy": 1.0},
        {"loss": 0.1, "accuracy": 0.9, "gb": 50},
        {"loss": 0.9, "accuracy": 0.1, "gb": 41},
        {"loss": 9.0, "accuracy": 0.0, "gb": 40},
        {"loss": math.nan, "accuracy": 1.0, "gb": 1},
        {"loss": -math.inf, "accuracy": 1.0, "gb": 1},
    ]
    results = [objectives.result(report) for report in reports]
    assert fronts(results) == [[3], [2], [1], [0, 4, 5]]
    assert front(results) == [3]
    assert front(results[:3]) == []
    assert results[0] == WORST_RESULT and results[3] == Result(0.0, (9.0, -0.0))
    assert not dominates(results[4], results[5])


def test_within_a_front_its_ends_come_first_and_then_the_loneliest() -> None:
    results = [Result(0.0, (x, -x)) for x in (0.0, 1.0, 2.0, 7.0, 10.0)]
    order = list(best_first(fronts(results), results.__getitem__))
    assert order == [0, 4, 3, 2, 1]
    equal = [Result(0.0, (1.0, 1.0))] * 3
    assert list(best_first(fronts(equal), equal.__getitem__)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "kept", "broken_by"),
    [("<= 40", [40, -1], {41: 1}), (">=1e-3", [0.001, 2], {0: 0.001}), (" > -2 ", [0], {-3: 1})],
)
def test_a_bound_is_kept_or_broken_by_an_amount(
    text: str, kept: list[float], broken_by: dict[float, float]
) -> None:
    objectives = Objectives.of({"metric": "loss", "constraints": {"m": text}})
    violations = [objectives.result({"loss": 0, "m": v}).violation for v in [*kept, *broken_by]]
    assert violations == [0.0] * len(kept) + list(broken_by.values())


def test_a_strict_bound_refuses_its_limit() -> None:
    objectives = Objectives.of({"metric": "loss", "constraints": {"m": "< 40"}})
    assert objectives.result({"loss": 0, "m": 40}).violation > 0


def loaded(searcher: dict[str, Any]) -> dict[str, Any]:
    """The searcher section of the resolved configuration."""
    config = load_experiment({"entrypoint": "a", "searcher": searcher}).config
    section: dict[str, Any] = config.to_dict()["searcher"]
    return section


def test_the_first_of_metrics_is_the_metric_and_a_resolved_configuration_loads_again() -> None:
    section = loaded({**SECTION, "metrics": TWO[::-1]})
    assert (section["metric"], section["smaller_is_better"]) == ("accuracy", False)
    assert loaded(section) == section
    assert not Objectives.of(section).single
    assert Objectives.of(loaded({"name": "single", "metric": "loss"})).single


def test_another_metric_replaces_several_of_a_lower_layer() -> None:
    base = load_experiment({"entrypoint": "a", "searcher": SECTION}).config.to_dict()
    one = load_experiment({"searcher": {"metric": "f1"}}, base=base).config.searcher
    assert (one.metric, one.metrics) == ("f1", ())
    new = load_experiment(
        {}, base=base, overrides=["searcher.metrics=[{name: a}, {name: b}]"]
    ).config.searcher
    assert (new.metric, [metric.name for metric in new.metrics]) == ("a", ["a", "b"])


def _optuna(**more: Any) -> dict[str, Any]:
    return {"name": "optuna", "max_trials": 4, "metrics": TWO, **more}


@pytest.mark.parametrize(
    ("searcher", "path", "advice"),
    [
        ({**SECTION, "metric": "f1"}, "searcher.metric", "keep one of the two"),
        ({**SECTION, "smaller_is_better": False}, "searcher.smaller_is_better", "each of metrics"),
        ({**SECTION, "metrics": [*TWO, TWO[0]]}, "searcher.metrics", "name each once"),
        ({**SECTION, "constraints": {"gb": "40"}}, "searcher.constraints", "gb lacks"),
        ({**SECTION, "constraints": {"gb": "<= nan"}}, "searcher.constraints", "gb lacks"),
        ({"name": "custom", "metrics": TWO}, "searcher.metrics", "pass a mapping"),
        (_optuna(sampler="cmaes"), "searcher.sampler", "use one of tpe"),
        ({**SECTION, "stop": {"target": 1}, "constraints": {}}, "searcher.stop", "leave it out"),
        (
            {"name": "async_halving", "num_rungs": 2, "max_trials": 4, "max_length": 8}
            | {"sampler": "tpe", "metrics": TWO},
            "searcher.sampler",
            "or use the optuna searcher",
        ),
        (_optuna(pruner="median"), "searcher.pruner", "leave it out"),
        (
            {
                "name": "pbt",
                "population_size": 4,
                "num_rounds": 2,
                "length_per_round": 1,
                "metric": "loss",
                "constraints": {"gb": "<= 40"},
            },
            "searcher.constraints",
            "use random",
        ),
    ],
)
def test_what_no_method_can_do_is_refused(searcher: dict[str, Any], path: str, advice: str) -> None:
    with pytest.raises(ConfigErrors) as error:
        loaded(searcher)
    problems = error.value.problems
    assert [problem.path for problem in problems] == [path]
    assert advice in str(problems[0])


def test_all_others_are_accepted() -> None:
    halving = {"name": "adaptive_asha", "max_trials": 8, "max_length": {"batches": 9}}
    optuna = [_optuna(sampler=sampler) for sampler in ("nsgaii", "nsgaiii", "tpe", "gp")]
    for searcher in chain([SECTION, {**halving, "metrics": TWO}], optuna):
        assert Objectives.of(loaded(searcher)).metrics[1].name == "accuracy"
