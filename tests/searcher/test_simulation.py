"""Previews and simulations: what a search will do before a node hour is spent."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from detslurm.searcher.curves import Curves, Recorded
from detslurm.searcher.halving.brackets import bracket_plans
from detslurm.searcher.preview import Row, preview, shortfall
from detslurm.searcher.search import Search
from detslurm.searcher.simulation import simulate
from detslurm.searcher.trials import TrialPlan
from tests.counting import calls

SPACE = {"x": {"type": "int", "minval": 1, "maxval": 4, "count": 4}}
ASHA: dict[str, Any] = {"max_trials": 10, "divisor": 3, "time_metric": "batches", "max_time": 900}
HALVING: dict[str, Any] = {"num_rungs": 3, "max_trials": 12, "divisor": 3}
PBT: dict[str, Any] = {"population_size": 10, "num_rounds": 3, "length_per_round": {"epochs": 2}}


def config(name: str, **searcher: Any) -> dict[str, Any]:
    """A resolved configuration, as far as searches look at it."""
    return {
        "searcher": {"name": name, "metric": "loss", **searcher},
        "hyperparameters": SPACE,
        "reproducibility": {"experiment_seed": 11},
    }


class Steps:
    """Curves without a slope: the later a trial was created, the worse; a unit is a second."""

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        return float(index)

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        return float(end - start)


def test_too_few_trials_for_the_rungs_are_said() -> None:
    """Nobody is promoted from a rung of less than `divisor`; stopping lets the first one go on."""
    few: dict[str, Any] = {"num_rungs": 4, "max_trials": 7, "divisor": 3}
    seen = preview(config("async_halving", **few, max_length={"epochs": 10}))
    assert seen.rows == [Row(7, 1)]
    assert "7 trials can't fill" in str(shortfall(seen)) and "10 epochs" in str(shortfall(seen))
    for enough in (
        config("async_halving", **{**few, "max_trials": 27}, max_length={"epochs": 10}),
        config("async_halving", **few, time_metric="epochs", max_time=10),
        config("random", max_trials=2),
        config("custom"),
    ):
        assert shortfall(preview(enough)) is None


@pytest.mark.parametrize("trials", [1, 7, 27, 40])
@pytest.mark.parametrize("rungs", [1, 3, 4])
@pytest.mark.parametrize("length", [1, 10, 900])
def test_promotion_is_previewed_as_it_goes(trials: int, rungs: int, length: int) -> None:
    """Where each trial is worse than the one before, it is the simulation to the trial."""
    fields = {"num_rungs": rungs, "max_trials": trials, "divisor": 3, "max_length": length}
    made = config("async_halving", **fields)
    assert preview(made).rows == simulate(made, 1, Steps()).rows


def test_a_simulated_grid_takes_turns() -> None:
    """4 trials of 100 units on 3 workers: two turns, in the second two workers are idle."""
    done = simulate(config("grid", max_length=100), 3, Steps())
    assert (done.seconds, done.total_units, done.trials) == (200.0, 400, 4)
    assert done.busy == pytest.approx(400 / 600)
    assert [t.start for t in done.each] == [0.0, 0.0, 0.0, 100.0]


def test_a_simulated_promotion_trains_each_unit_once() -> None:
    """A promoted trial goes on from its checkpoint; taking it up costs its worker time."""
    fields = {**HALVING, "max_length": 900, "max_concurrent_trials": 1}
    done = simulate(config("async_halving", **fields), 1, Steps(), start_seconds=10)
    assert done.rows == [Row(8, 100), Row(3, 300), Row(1, 900)]
    assert done.total_units == 800 + 900 + 900
    starts = sum(trial.runs for trial in done.each)
    assert done.seconds == done.total_units + 10 * starts
    assert done.busy == pytest.approx(1.0)
    assert done.best is not None
    assert (done.best.trial, done.best.units, done.best.outcome) == (1, 900, "completed")


def test_a_simulated_stopping_search_stops_trials() -> None:
    """With ever worse trials all but the first of each bracket stop at their first rung."""
    done = simulate(config("adaptive_asha", **ASHA, max_concurrent_trials=2), 2, Steps())
    outcomes = Counter(trial.outcome for trial in done.each)
    assert outcomes == {"stopped": 8, "completed": 2}
    assert done.trials == 10


def test_a_simulated_population_comes_to_its_end() -> None:
    """Ten members in each of three rounds, whatever the number of workers."""
    done = [simulate(config("pbt", **PBT), workers) for workers in (1, 4, 20)]
    assert {d.total_units for d in done} == {60}
    assert done[0].rows == [Row(2, 2), Row(2, 4), Row(10, 6)]
    assert done[2].seconds < done[1].seconds < done[0].seconds


def test_recorded_curves_are_followed() -> None:
    """The metric is the last one recorded by then; the best curve is found."""
    curves = Recorded([[(100, 0.9), (900, 0.5)], [(100, 0.8), (300, 0.2)], [(50, 0.7)]])
    done = simulate(config("random", max_trials=3, max_length=900), 3, curves)
    assert [trial.metric for trial in done.each] == [0.5, 0.2, 0.7]
    assert done.best is not None and done.best.trial == 2
    diverged = Recorded([[(100, math.nan)], [(100, -math.inf)], [(50, 0.7)]])
    done = simulate(config("random", max_trials=3, max_length=900), 3, diverged)
    assert done.best is not None and done.best.trial == 3
    with pytest.raises(ValueError, match="at least one point"):
        Recorded([[]])


def test_optuna_is_simulated_as_random() -> None:
    """Its samplers don't run here: the trials, lengths and times are those of a random search."""
    done = simulate(config("optuna", max_trials=8, max_concurrent_trials=2, max_length=5), 2)
    assert (done.trials, done.total_units) == (8, 40)


def test_what_cannot_be_simulated_is_refused() -> None:
    """A custom method lives elsewhere; nobody works without workers."""
    with pytest.raises(ValueError, match="custom"):
        simulate(config("custom"), 1)
    with pytest.raises(ValueError, match="at least one worker"):
        simulate(config("grid"), 0)


def large(trials: int, **fields: Any) -> dict[str, Any]:
    """A search of many trials by halving."""
    halving = {"num_rungs": 5, "divisor": 4, "max_trials": trials, "max_length": 4096}
    return config("async_halving", **{**halving, "max_concurrent_trials": 64, **fields})


@pytest.mark.parametrize("form", [{}, {"stop_once": True}], ids=["promotion", "stopping"])
def test_the_cost_of_a_trial_hardly_grows_with_them(form: dict[str, Any]) -> None:
    """So that thousands of trials are simulated in seconds."""
    few, many = (calls(partial(simulate, large(n, **form), 64)) for n in (500, 5000))
    assert (few[0].trials, many[0].trials) == (500, 5000)
    assert many[1] < 11 * few[1]
    assert many[1] < 300 * 5000


def test_the_state_of_twenty_thousand_trials_is_loaded() -> None:
    """Loading what was dumped gives the same state; `make bench` has its time."""
    search = Search(large(20_000, max_concurrent_trials=0, num_rungs=3))
    state = search.initial()
    while state.created < 20_000:
        search.apply(state, [{"e": "work_requested", "worker": "w"}])
        index = state.assignment("w")
        report = {"e": "validated", "trial": index, "length": 4096, "metric": (index or 0) % 97}
        search.apply(
            state, [report, {"e": "run_ended", "trial": index, "worker": "w", "outcome": "error"}]
        )
    data = search.dump(state)
    assert search.dump(search.load(data)) == data


SPREAD = st.sampled_from([1.5, 2, 3, 4, 7.5, 100])
LENGTHS = st.sampled_from(
    [{"max_length": {"epochs": 10}}, {"max_length": 1}, {"max_length": {"batches": 5}}]
    + [{"max_length": n, "stop_once": True} for n in (1, 10)]
    + [{"time_metric": "batches", "max_time": n} for n in (1, 2, 10, 900)]
)
HALVINGS = st.tuples(
    st.fixed_dictionaries(
        {
            "max_trials": st.sampled_from([1, 2, 3, 7, 30]),
            "max_concurrent_trials": st.sampled_from([0, 1, 2, 50]),
            "divisor": SPREAD,
            "smaller_is_better": st.booleans(),
        }
    ),
    LENGTHS,
    st.fixed_dictionaries({"name": st.just("async_halving"), "num_rungs": st.integers(1, 7)})
    | st.fixed_dictionaries(
        {
            "name": st.just("adaptive_asha"),
            "max_rungs": st.integers(1, 7),
            "mode": st.sampled_from(["aggressive", "standard", "conservative"]),
        },
        optional={"bracket_rungs": st.lists(st.integers(1, 7), min_size=1, max_size=4)},
    ),
)


@settings(max_examples=200, deadline=None)
@given(parts=HALVINGS, workers=st.integers(1, 5), curves=st.sampled_from([None, Steps()]))
@example(
    parts=(
        {"max_trials": 30, "divisor": 3},
        {"max_length": {"epochs": 10}},
        {"name": "async_halving", "num_rungs": 4},
    ),
    workers=1,
    curves=None,
)
def test_every_halving_ends(
    parts: tuple[dict[str, Any], ...], workers: int, curves: Curves | None
) -> None:
    """Whatever lengths, rungs (of equal length, too), divisors and limits it has: all its trials
    begin and close, and one of each bracket comes to the top."""
    fields = {key: value for part in parts for key, value in part.items()}
    made = config(fields.pop("name"), **fields)
    plans = bracket_plans(made["searcher"])
    seen = simulate(made, workers, curves)
    assert seen.trials == sum(plan.max_trials for plan in plans)
    assert {trial.outcome for trial in seen.each} <= {"completed", "stopped"}
    for number, plan in enumerate(plans):
        ends = [trial.units for trial in seen.each if trial.bracket == number]
        assert len(ends) == plan.max_trials
        assert set(ends) <= set(plan.units)
