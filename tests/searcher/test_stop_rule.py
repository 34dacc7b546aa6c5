"""`searcher.stop`: a search ends with the target, or when nothing better comes any more."""

from __future__ import annotations

import math
from typing import Any

import pytest

from detslurm.searcher import Search, State
from detslurm.searcher.simulation import simulate
from tests.searcher.drive import ask, leave, report, run, search, train
from tests.searcher.test_invariants import METHODS, SPACE

TARGET: dict[str, Any] = {"max_trials": 6, "max_concurrent_trials": 3, "stop": {"target": 0.5}}


def loss(index: int, length: int) -> float:
    """The first trials are the best."""
    return index + 1 / length


def reported(search: Search, state: State, index: int, metric: Any, **more: Any) -> None:
    """A trial's chief reports on its way, if that may end the search."""
    if search.may_end(state, index, metric):
        search.apply(state, [{"e": "reported", "trial": index, "metric": metric, **more}])


def begun(**fields: Any) -> tuple[Search, State]:
    """A random search of which three workers have a trial."""
    chosen = search("random", SPACE, **{**TARGET, **fields})
    state = chosen.initial()
    assert [ask(chosen, state, f"w{n}") for n in range(3)] == [0, 1, 2]
    return chosen, state


@pytest.mark.parametrize("name", [name for name in METHODS if name != "single"])
def test_every_method_ends_with_the_target(name: str) -> None:
    """Waiting and paused trials close, those at work are stopped, and nothing new begins."""
    fields = {**METHODS[name], "stop": {"target": 0.25}}
    chosen = search(fields.pop("name"), SPACE, **fields)
    state = chosen.initial()
    first, other = ask(chosen, state, "w0"), ask(chosen, state, "w1")
    assert first is not None and other is not None
    reported(chosen, state, first, 0.3)
    assert (state.ended, state.done) == (False, False)
    reported(chosen, state, first, 0.25)
    assert (state.ended, state.done, state.waiting()) == (True, False, [])
    created, running = state.created, state.assigned().values()
    assert sorted(running) == [first, other] and all(state.trials[i].stop for i in running)
    assert ask(chosen, state, "w2") is None
    for index in (first, other):
        leave(chosen, state, index, "preempted")
    assert (state.done, state.verdict, state.created) == (True, "completed", created)
    reason = chosen.end_reason(state, range(10, 99))
    assert reason == "searcher.stop.target: trial 10 reported loss 0.25, and the target is 0.25"


def test_a_result_at_a_length_ends_a_search_too() -> None:
    """The last report of a trial, which is also judged: the trial ends as it would have."""
    for larger, target in ((False, 0.2), (True, 3.0)):
        chosen = search(
            "async_halving",
            num_rungs=2,
            max_trials=6,
            max_length=9,
            smaller_is_better=not larger,
            stop={"target": target},
        )
        state = run(chosen, lambda index, length: index + 0.1)
        assert state.ended and state.verdict == "completed" and state.open == 0
        assert state.leader is not None and state.leader.trial == (3 if larger else 0)


def test_no_better_for_counts_the_trials_that_closed_since_the_best() -> None:
    """Failed, refused and canceled trials don't count, nor does the trial that is the best."""
    chosen = search("random", max_trials=20, max_length=9, stop={"no_better_for": 3})
    state = chosen.initial()
    metrics = iter([0.9, 0.5, 0.7, math.nan, 0.4, 0.4, None, 0.6, 0.1])
    outcomes = {2: "error", 5: "invalid_hp", 6: "canceled"}
    for index in range(20):
        if state.ended:
            break
        assert ask(chosen, state) == index
        if index in outcomes:
            leave(chosen, state, index, outcomes[index])
        else:
            report(chosen, state, index, 9, next(metrics))
            leave(chosen, state, index, "out_of_ops")
    assert next(metrics) == 0.1  # 0.4 was the best, and three were no better
    assert state.done and state.verdict == "completed"
    assert chosen.end_reason(state, range(1, 99)) == (
        "searcher.stop.no_better_for: 3 trials closed since trial 8 reported loss 0.4, the best"
    )


def test_without_any_result_a_search_is_not_ended() -> None:
    """NaN, text and infinity are no results: all trials are tried."""
    chosen = search("random", max_trials=9, max_length=9, stop={"no_better_for": 2, "target": 1})
    bad = [math.nan, "0.1", -math.inf, None]
    state = run(chosen, lambda index, length: bad[index % 4])
    assert (state.ended, state.created) == (False, 9)
    assert chosen.end_reason(state, range(9)) is None


def test_late_and_repeated_reports_change_nothing() -> None:
    """Of an earlier run, of a stopped trial, of a closed one, or twice."""
    chosen, state = begun(stop={"no_better_for": 2})
    chosen.apply(state, [{"e": "reported", "trial": 0, "metric": 0.1, "fencing_token": 9}])
    untouched = chosen.dump(state)
    assert untouched == chosen.dump(begun(stop={"no_better_for": 2})[1])
    reported(chosen, state, 0, 0.8, fencing_token=1)
    once = chosen.dump(state)
    assert once != untouched
    chosen.apply(state, [{"e": "reported", "trial": 0, "metric": 0.8, "fencing_token": 1}])
    assert chosen.dump(state) == once and not chosen.may_end(state, 0, 0.8)
    leave(chosen, state, 1, "completed")
    chosen.apply(state, [{"e": "reported", "trial": 1, "metric": 0.1}])
    leave(chosen, state, 2, "completed")
    assert state.ended and state.leader is not None and state.leader.metric == 0.8
    assert not chosen.may_end(state, 0, 0.1)
    chosen.apply(state, [{"e": "reported", "trial": 0, "metric": 0.1}])
    assert state.leader.metric == 0.8


def test_a_requeued_trial_and_a_restart_are_not_asked_to_go_on() -> None:
    """A trial that gave way before it knew, and one whose worker died, close all the same; the
    state can be dumped and loaded in between."""
    chosen, state = begun()
    leave(chosen, state, 0, "preempted")
    reported(chosen, state, 1, 0.5)
    assert state.trials[0].outcome == "completed"  # it waited for a worker
    state = chosen.load(chosen.dump(state))
    for index in (1, 2):
        leave(chosen, state, index, "lost")
    assert (state.done, state.verdict, state.created) == (True, "completed", 3)


def test_single_ends_at_its_target() -> None:
    """The only trial is stopped on its way."""
    chosen = search("single", stop={"target": 0.5})
    state = chosen.initial()
    ask(chosen, state)
    reported(chosen, state, 0, 0.5)
    assert state.trials[0].stop
    leave(chosen, state, 0, "stopped")
    assert (state.done, state.verdict) == (True, "completed")


def test_a_population_ends_in_the_middle_of_a_round() -> None:
    """Members that wait for the others' round close, and no copy is made."""
    chosen = search("pbt", population_size=3, num_rounds=3, length_per_round=2, stop={"target": 0})
    state = chosen.initial()
    assert [ask(chosen, state, f"w{n}") for n in range(3)] == [0, 1, 2]
    train(chosen, state, 0, lambda index, length: 1.0)
    report(chosen, state, 1, 2, 0.0)
    assert [trial.outcome for trial in state.trials] == ["completed", None, None]
    for index in (1, 2):
        leave(chosen, state, index, "stopped")
    assert (state.done, state.created, state.verdict) == (True, 3, "completed")


def test_an_optuna_search_ends_before_a_trial_has_its_sample() -> None:
    """The worker that waits for a sample gives its trial back."""
    chosen = search("optuna", **TARGET)
    state = chosen.initial()
    ask(chosen, state, "w0"), ask(chosen, state, "w1")
    chosen.apply(state, [{"e": "sampled", "trial": 0, "hparams": {"x": 0.5}}])
    chosen.apply(state, [{"e": "validated", "trial": 0, "time": 1, "metric": 0.1}])
    assert state.ended and state.trials[1].stop
    for index in (0, 1):
        leave(chosen, state, index, "stopped")
    assert (state.done, state.verdict) == (True, "completed")


@pytest.mark.parametrize("rule", [{"target": 0.3}, {"no_better_for": 4}])
def test_a_simulation_ends_by_the_rule(rule: dict[str, Any]) -> None:
    """Twice the same, and shorter than without a rule; the reason counts trials from 1."""
    plain = {"name": "random", "metric": "loss", "max_trials": 200, "max_length": 9}
    config = {"searcher": {**plain, "stop": rule}, "hyperparameters": {}}
    ended = simulate(config, 4)
    assert simulate(config, 4) == ended
    whole = simulate({"searcher": plain, "hyperparameters": {}}, 4)
    assert ended.trials < whole.trials == 200 and whole.end_reason is None
    assert ended.end_reason is not None and ended.best is not None
    assert ended.end_reason.startswith(f"searcher.stop.{next(iter(rule))}: ")
    assert f"trial {ended.best.trial} reported loss" in ended.end_reason
