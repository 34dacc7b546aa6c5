"""Searches by several metrics and constraints: halving by rank, Optuna's samplers, simulations."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest

from detslurm.searcher import Search, State
from detslurm.searcher.objectives import Objectives
from detslurm.searcher.optuna.bridge import SAMPLERS
from detslurm.searcher.preview import preview
from detslurm.searcher.simulation import simulate
from tests.searcher.drive import SPACE, ask, begun, leave, search, take_sampled

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

TWO: dict[str, Any] = {"metrics": [{"name": "loss"}, {"name": "speed", "smaller_is_better": False}]}
BOUND: dict[str, Any] = {"constraints": {"gb": "<= 40"}}
RUNGS: dict[str, Any] = {"num_rungs": 2, "divisor": 2, "max_trials": 4}
PROMOTION: dict[str, Any] = {**RUNGS, "max_length": {"batches": 4}, "max_concurrent_trials": 4}
Values = dict[str, Any]


def report(chosen: Search, state: State, index: int, units: int, values: Values) -> None:
    """A trial's chief reports all that is compared."""
    key = "time" if chosen.judges_reports else "length"
    event = {"e": "validated", "trial": index, key: units, "metric": values.get("loss")}
    chosen.apply(state, [{**event, "metrics": values}])


def promoted(reports: list[Values], **fields: Any) -> list[int]:
    """The trials that go on from the first rung, after all have reported there."""
    chosen = search("async_halving", **PROMOTION, **fields)
    state = chosen.initial()
    for index, values in enumerate(reports):
        ask(chosen, state, f"w{index}")
        report(chosen, state, index, 2, values)
    return [index for index, trial in enumerate(state.trials) if trial.target_length == 4]


def test_the_front_goes_on_although_another_metric_alone_would_not_let_it() -> None:
    """By loss alone trials 1 and 2 would."""
    reports = [
        {"loss": 0.9, "speed": 9},
        {"loss": 0.2, "speed": 1},
        {"loss": 0.1, "speed": 2},
        {"loss": 0.95, "speed": 8},
    ]
    assert promoted(reports, **TWO) == [0, 2]
    assert promoted(reports) == [1, 2]


def test_constraints_come_first_and_what_is_missing_last() -> None:
    reports: list[Values] = [
        {"loss": 0.4, "gb": 40},
        {"loss": 0.2, "gb": None},
        {"loss": 0.1, "gb": 41},
        {"loss": 0.3, "gb": 1},
    ]
    assert promoted(reports, **BOUND) == [0, 3]
    nothing: list[Values] = [{"loss": math.nan, "gb": 1}] * 2
    assert promoted([reports[2], reports[1], *nothing], **BOUND) == [0]


@pytest.mark.parametrize(("bound", "last_stops"), [({}, False), (BOUND, True)])
def test_stopping_lets_the_best_ranks_go_on(bound: dict[str, Any], last_stops: bool) -> None:
    """The last one has the worst loss, the best speed, and breaks the constraint."""
    fields = {**RUNGS, "time_metric": "batches", "max_time": 4, **TWO, **bound}
    chosen = search("async_halving", **fields)
    state = chosen.initial()
    reports = [(0.5, 5, 1), (0.7, 4, 1), (0.8, 3, 1), (0.9, 9, 41)]
    for index, (loss, speed, gb) in enumerate(reports):
        ask(chosen, state, f"w{index}")
        report(chosen, state, index, 2, {"loss": loss, "speed": speed, "gb": gb})
    assert [trial.stop for trial in state.trials] == [False, True, True, last_stops]


def test_a_refused_sample_takes_its_result_along() -> None:
    chosen = search("async_halving", **PROMOTION, **TWO)
    state = begun(chosen, 4)
    for index in (0, 1):
        report(chosen, state, index, 2, {"loss": index, "speed": -index})
    leave(chosen, state, 0, "invalid_hp")
    rung = state.brackets[0].rungs[0]
    assert [(score, index) for score, _, index in rung.results] == [(0.0, 1)]
    assert list(rung.compared) == [1]
    assert chosen.dump(chosen.load(chosen.dump(state))) == chosen.dump(state)


@pytest.mark.parametrize("by", ["max_length", "max_time"])
def test_simulations_show_the_front_and_train_no_more_than_with_one_metric(by: str) -> None:
    """Ranks change with each result, which must not promote more trials than the best ones."""
    length = {"max_length": {"batches": 64}} if by == "max_length" else {}
    time = {"time_metric": "batches", "max_time": 64} if by == "max_time" else {}
    one = {"name": "adaptive_asha", "metric": "loss", "max_trials": 300, **length, **time}
    three = {"metrics": [*TWO["metrics"], {"name": "size"}], **BOUND}
    configs = [{"searcher": {**one, **more}, "hyperparameters": SPACE} for more in ({}, three)]
    alone, several = (simulate(config, 8) for config in configs)
    assert several.rows[-1].trials <= 1.3 * alone.rows[-1].trials
    assert several.total_units <= 1.25 * alone.total_units
    assert alone.best is not None and not alone.front
    assert several.best is None
    objectives = Objectives.of({**one, **three})
    best = {several.each[number - 1].trial for number in several.front}
    assert best == set(several.front) and len(best) > 1
    assert all(objectives.result(t.metrics).violation == 0 for t in several.each if t.metrics)
    assert preview(configs[0]).rows == preview(configs[1]).rows


OPTUNA: dict[str, Any] = {"x": {"type": "double", "minval": -2.0, "maxval": 2.0}}


def measured(x: float) -> Values:
    """Two metrics that contradict each other between 0 and 1, and one that is bounded."""
    return {"loss": x * x, "speed": -((x - 1) ** 2), "gb": 40 + x}


def ours(trials: int, **fields: Any) -> list[float]:
    """The samples of a search, one trial at a time, each in a fresh process."""
    chosen = search("optuna", OPTUNA, seed=3, max_trials=trials, **fields)
    state, found = chosen.initial(), []
    for _ in range(trials):
        index = take_sampled(chosen, state)
        found.append(chosen.plan(state, index).hparams["x"])
        report(chosen, state, index, 1, measured(found[-1]))
        leave(chosen, state, index, "completed")
    return found


def optunas(trials: int, sampler: str, *, bound: bool) -> list[float]:
    """The samples that Optuna draws by itself."""

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        values = measured(trial.suggest_float("x", -2, 2))
        if bound:
            trial.set_constraint("gb", values["gb"] - 40)
        return values["loss"], values["speed"]

    made = getattr(optuna.samplers, SAMPLERS[sampler])
    more = {"population_size": 6} if sampler.startswith("nsga") else {}
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=made(seed=3, **more))
    study.optimize(objective, n_trials=trials)
    return [trial.params["x"] for trial in study.trials]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("sampler", ["tpe", "nsgaii", "nsgaiii", "random"])
def test_optunas_samplers_draw_as_in_optuna_itself(sampler: str, bound: bool) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    args = {"sampler_args": {"population_size": 6}} if sampler.startswith("nsga") else {}
    fields = {"sampler": sampler, **args, **TWO, **(BOUND if bound else {})}
    assert ours(20, **fields) == pytest.approx(optunas(20, sampler, bound=bound))


@pytest.mark.parametrize("sampler", ["tpe", "nsgaii"])
def test_a_failed_measurement_stops_no_sampler(sampler: str) -> None:
    chosen = search("optuna", OPTUNA, max_trials=14, sampler=sampler, **TWO, **BOUND)
    state = chosen.initial()
    bad: list[Values] = [{"loss": math.nan, "speed": 1, "gb": 1}, {"loss": 1}, {}]
    for _ in range(12):
        index = take_sampled(chosen, state)
        x = chosen.plan(state, index).hparams["x"]
        report(chosen, state, index, 1, bad[index % 4] if index % 4 < 3 else measured(x))
        leave(chosen, state, index, "completed")
    assert [trial.outcome for trial in state.trials[:12]] == ["completed"] * 12
