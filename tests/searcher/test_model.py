"""Halving with a sampler: which trials a model chooses, from which results, and that it repeats."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from detslurm.searcher import Search, State
from detslurm.searcher.simulation import simulate
from detslurm.searcher.trials import TrialPlan
from tests.searcher.drive import ask, leave, report, search, take

pytestmark = pytest.mark.filterwarnings("ignore:.*experimental")  # in Optuna 4

SPACE = {"x": {"type": "double", "minval": 0.0, "maxval": 1.0}}  # one dimension: four results do
STOPPING = {"num_rungs": 2, "time_metric": "epochs", "max_time": 4, "divisor": 4}
PROMOTION = {"num_rungs": 2, "max_length": 4, "divisor": 4}


def halving(trials: int = 20, form: dict[str, Any] = STOPPING, **fields: Any) -> Search:
    """A search of one bracket, two trials at once."""
    fields = {"sampler": "tpe", "max_concurrent_trials": 2, **form, **fields}
    return search("async_halving", SPACE, max_trials=trials, **fields)


def judge(made: Search, state: State, metric: float, worker: str = "w") -> int:
    """A worker takes a trial, which reports at the first rung and is stopped, or leaves."""
    index = take(made, state, worker)
    for late in made.unsampled(state):
        made.apply(state, [{"e": "sampled", "trial": late, "hparams": {"x": 0.5}}])
    length = state.brackets[0].rungs[0].units
    event = {"e": "validated", "trial": index, "metric": metric}
    made.apply(state, [{**event, "time" if made.judges_reports else "length": length}])
    leave(made, state, index, "out_of_ops")
    return index


def modelled(state: State) -> list[int]:
    return [index for index, trial in enumerate(state.trials) if trial.modelled]


@pytest.mark.parametrize("form", [STOPPING, PROMOTION])
def test_trials_are_modelled_once_a_rung_has_enough_results(form: dict[str, Any]) -> None:
    """With one dimension the fourth result is enough; every third trial keeps its own sample."""
    made, plain = halving(form=form), halving(form=form, sampler=None)
    state = made.initial()
    while len(state.brackets[0].rungs[0].results) < 4:
        judge(made, state, float(state.created))
        assert not modelled(state) or len(state.brackets[0].rungs[0].results) == 4
    for _ in range(9):
        judge(made, state, float(state.created))
    first = modelled(state)[0]
    later = range(first, state.created)
    assert modelled(state) == [index for index in later if index % 3]
    for index in {*range(state.created)} - {*modelled(state)}:
        assert made.plan(state, index) == TrialPlan(
            hparams=plain.samples.plan(index).hparams,
            seed=plain.samples.plan(index).seed,
            request_id=plain.samples.plan(index).request_id,
        )
    chosen = made.plan(state, first)
    assert chosen.hparams == {"x": 0.5} and chosen.seed == plain.samples.plan(first).seed


def test_results_without_a_number_are_not_enough() -> None:
    """A rung of failures teaches nothing; a model of others learns of them as the worst."""
    made = halving()
    state = made.initial()
    for _ in range(6):
        judge(made, state, math.nan)
    assert modelled(state) == []
    for _ in range(4):
        judge(made, state, 1.0)
    assert modelled(state)
    reports = [known.reports for known in made.history(state).trials.values()]
    assert reports.count([(1, None)]) == 6 and reports.count([(1, 1.0)]) == 4


def test_the_highest_rung_with_enough_results_counts() -> None:
    """The model goes over to the upper rung with the fourth result there."""
    made = halving(form={**STOPPING, "divisor": 1.1, "max_time": 4}, smaller_is_better=False)
    state = made.initial()
    low, top = (rung.units for rung in state.brackets[0].rungs)
    for best in range(4):
        index = take(made, state)
        for late in made.unsampled(state):
            made.apply(state, [{"e": "sampled", "trial": late, "hparams": {"x": 0.5}}])
        report(made, state, index, low, float(best))
        units = {
            known.reports[0][0] for known in made.history(state).trials.values() if known.reports
        }
        assert units <= {low}
        made.apply(state, [{"e": "validated", "trial": index, "time": top, "metric": 10.0 + best}])
        leave(made, state, index, "out_of_ops")
    known = [k.reports for k in made.history(state).trials.values() if k.state == "complete"]
    assert known == [[(top, 10.0 + best)] for best in range(4)]


def test_brackets_share_their_results_at_equal_lengths() -> None:
    """Three results in each of two brackets are enough at the length that both have a rung at."""
    made = search(
        "adaptive_asha", SPACE, sampler="tpe", max_trials=20, max_concurrent_trials=6,
        bracket_rungs=[2, 1], time_metric="epochs", max_time=4, divisor=4,
    )  # fmt: skip
    state = made.initial()
    for turn in range(6):
        index = take(made, state, f"w{turn}")
        made.apply(state, [{"e": "validated", "trial": index, "time": 4, "metric": float(-turn)}])
    by_bracket = [len(b.rungs[-1].results) for b in state.brackets]
    assert by_bracket == [3, 3] and modelled(state)
    assert {k.reports[0] for k in made.history(state).trials.values() if k.reports} == {
        (4, float(-turn)) for turn in range(6)
    }


def test_trials_at_work_are_known_and_paused_ones_are_not() -> None:
    """A trial in training counts as running; one that is paused below the model's rung does not."""
    made = halving(form={**PROMOTION, "num_rungs": 3, "divisor": 1.5}, max_concurrent_trials=6)
    state = made.initial()
    low, middle, _ = (rung.units for rung in state.brackets[0].rungs)
    assert low < middle
    for turn in range(7):
        for length in (low, middle):
            index = take(made, state, f"w{turn}")
            for late in made.unsampled(state):
                made.apply(state, [{"e": "sampled", "trial": late, "hparams": {"x": 0.5}}])
            if state.trials[index].target_length == length:
                report(made, state, index, length, float(-turn))
                leave(made, state, index, "out_of_ops")
    running = ask(made, state)
    known = made.history(state).trials
    results = {index for _, _, index in state.brackets[0].rungs[1].results}
    assert {i for i, k in known.items() if k.state == "complete"} == results
    paused = {i for i, t in enumerate(state.trials) if t.status == "paused"}
    assert paused - results and not (paused - results) & {*known}
    while running in results:
        leave(made, state, running, "completed")
        running = ask(made, state)
    assert running is not None and known[running].state == "running"


def test_the_first_sample_stands_and_others_get_none() -> None:
    """A second answer for a trial, or one for a trial with a sample of its own, changes nothing."""
    made = halving()
    state = made.initial()
    for _ in range(4):
        judge(made, state, 1.0)
    while not made.unsampled(state):
        index = take(made, state)
        if not state.trials[index].modelled:
            judge(made, state, 1.0)
    (late,) = made.unsampled(state)
    for x in (0.25, 0.75):
        made.apply(state, [{"e": "sampled", "trial": late, "hparams": {"x": x}}])
        made.apply(state, [{"e": "sampled", "trial": 0, "hparams": {"x": x}}])
    assert made.plan(state, late).hparams == {"x": 0.25}
    assert state.trials[0].hparams is None
    assert made.load(made.dump(state)) == state


def test_a_worker_that_dies_before_it_samples_costs_no_restart() -> None:
    """As with the optuna searcher: the trial comes back though its restarts are used up."""
    made = halving()
    made.max_restarts = 0
    state = made.initial()
    for _ in range(4):
        judge(made, state, 1.0)
    while not made.unsampled(state):
        judge(made, state, 1.0)
        ask(made, state)
    (late,) = made.unsampled(state)
    for turn in range(5):
        leave(made, state, late, "lost")
        assert ask(made, state, f"again{turn}") == late
    assert made.unsampled(state) == [late]


class Bowl:
    """The closer x is to 0.3, the better, at any length."""

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        return float(abs(plan.hparams["x"] - 0.3) + 0.1 / units)

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        return end - start + 0.1 * float(plan.hparams["x"])


def simulated(sampler: str | None, seed: int, **more: Any) -> list[tuple[int, float | None]]:
    """How far each trial trained in virtual time on four workers, and how well, with Optuna."""
    from detslurm.searcher.optuna.bridge import Bridge

    config = {
        "searcher": {
            "name": "adaptive_asha", "metric": "loss", "max_trials": 24, "divisor": 3,
            "max_concurrent_trials": 4, "time_metric": "epochs", "max_time": 9,
            "sampler": sampler, **more,
        },
        "hyperparameters": SPACE,
        "reproducibility": {"experiment_seed": seed},
    }  # fmt: skip
    bridge = Bridge(config["searcher"], SPACE, seed)
    done = simulate(config, 4, Bowl(), suggest=bridge.suggest)
    return [(trial.units, trial.metric) for trial in done.each]


def test_the_same_seed_gives_the_same_search() -> None:
    """A search with TPE repeats itself; it begins with the samples of one without."""
    plain, tpe = simulated(None, 7), simulated("tpe", 7)
    assert simulated("tpe", 7) == tpe
    assert simulated("tpe", 8) != tpe
    assert [metric for _, metric in tpe[:4]] == [metric for _, metric in plain[:4]]
    assert tpe != plain


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sample_depends_on_results_seed_and_trial_alone(sampler: str) -> None:
    """Asked together or in another process, a trial's sample is the same; trials differ."""
    from detslurm.searcher.optuna.bridge import Bridge
    from detslurm.searcher.optuna.history import KnownTrial, TrialHistory

    history = TrialHistory(
        {n: KnownTrial({"x": n / 5}, "complete", [(1, abs(n / 5 - 0.3))]) for n in range(5)}
    )
    section = {"name": "async_halving", "metric": "loss", "sampler": sampler}

    def asked(*wanted: int) -> list[Any]:
        return Bridge(section, SPACE, 3).suggest(history, wanted)

    (first, second), (other,) = asked(7, 8), asked(8)
    assert asked(7) == [first] and json.loads(json.dumps(first)) == first
    assert first["hparams"] != second["hparams"]
    if sampler == "tpe":  # which counts trials at work in every version
        assert second["hparams"] != other["hparams"]
