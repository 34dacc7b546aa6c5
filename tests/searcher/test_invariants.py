"""Whatever happens in whatever order, a search keeps its promises (property-based)."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detslurm._base.states import RunOutcome
from detslurm.searcher import Search, State
from detslurm.searcher.objectives import fronts
from detslurm.searcher.state import Rung
from tests.searcher.drive import ask, begun, leave, search, train

MAX_TRIALS = 9
TOP = 27
CONCURRENT: dict[str, Any] = {"max_trials": MAX_TRIALS, "max_concurrent_trials": 3}
BY_LENGTH: dict[str, Any] = {"divisor": 3, "max_length": {"batches": TOP}}
BY_TIME: dict[str, Any] = {"divisor": 3, "time_metric": "batches", "max_time": TOP}
SEVERAL: dict[str, Any] = {
    "metrics": [{"name": "loss"}, {"name": "size", "smaller_is_better": False}],
    "constraints": {"gb": "<= 1"},
}
METHODS: dict[str, dict[str, Any]] = {
    "single": {"name": "single", "max_length": TOP},
    "random": {"name": "random", **CONCURRENT, "max_length": TOP},
    "random without a length": {"name": "random", **CONCURRENT},
    "grid": {"name": "grid", "max_concurrent_trials": 3},
    "promotion": {"name": "async_halving", "num_rungs": 3, **CONCURRENT, **BY_LENGTH},
    "promotion over equal rungs": {
        "name": "async_halving",
        "num_rungs": 5,
        **CONCURRENT,
        "divisor": 2,
        "max_length": {"epochs": 5},
    },
    "promotion with a rule": {
        "name": "async_halving",
        "num_rungs": 3,
        **CONCURRENT,
        **BY_LENGTH,
        "stop": {"no_better_for": 3, "target": 0},
    },
    "stopping": {"name": "async_halving", "num_rungs": 3, **CONCURRENT, **BY_TIME},
    "stop once": {
        "name": "async_halving",
        "num_rungs": 3,
        "stop_once": True,
        **CONCURRENT,
        **BY_LENGTH,
    },
    "adaptive": {"name": "adaptive_asha", "mode": "conservative", **CONCURRENT, **BY_LENGTH},
    "adaptive stopping": {"name": "adaptive_asha", "mode": "standard", **CONCURRENT, **BY_TIME},
    "several by promotion": {
        "name": "async_halving",
        "num_rungs": 3,
        **CONCURRENT,
        **BY_LENGTH,
        "divisor": 2,
        **SEVERAL,
    },
    "several by stopping": {"name": "adaptive_asha", **CONCURRENT, **BY_TIME, **SEVERAL},
    "pbt": {
        "name": "pbt",
        "population_size": 4,
        "num_rounds": 3,
        "length_per_round": 9,
        "replace_function": {"truncate_fraction": 0.5},
    },
}
SPACE = {
    "x": {"type": "int", "minval": 0, "maxval": 2, "count": 3},
    "n": {"y": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 3}},
}
WORKERS = 3
METRICS = st.sampled_from([math.nan, None, "NaN", math.inf, -math.inf, 0, 0.0, 0.25, 0.5, 1, 2.5])

ASKS = st.tuples(st.just("ask"), st.integers(0, WORKERS - 1))
REPORTS = st.tuples(st.just("report"), st.integers(0, WORKERS - 1), METRICS)
OUTCOMES = get_args(RunOutcome)
LEAVES = st.tuples(st.just("leave"), st.integers(0, WORKERS - 1), st.sampled_from(OUTCOMES))
STRAYS = st.fixed_dictionaries(
    {
        "e": st.sampled_from(
            ["validated", "run_ended", "work_requested", "sampled", "operations", "news", 3]
        ),
        "trial": st.integers(-2, 15) | st.none(),
        "worker": st.sampled_from(["w0", "w1", "gone"]) | st.just(7),
    },
    optional={
        "length": st.integers(-1, 40) | st.sampled_from([math.nan, math.inf, "9"]),
        "time": st.floats(-1, 40),
        "metric": METRICS,
        "outcome": st.sampled_from([*OUTCOMES, "tired"]),
        "fencing_token": st.integers(0, 2),
        "hparams": st.just({"x": 1}),
        "after": st.integers(0, 3),
        "ops": st.just([{"op": "shutdown"}]),
    },
)
STEPS = st.lists(
    ASKS | REPORTS | LEAVES | st.tuples(st.just("stray"), STRAYS), min_size=15, max_size=80
)


def values(metric: Any, index: int, length: int) -> dict[str, Any]:
    """A report of several metrics, some of which break the constraint, or lack it."""
    gb = {} if (index + length) % 5 == 0 else {"gb": (index * length) % 3}
    return {"loss": metric, "size": (index * 7 + length) % 4, **gb}


def event_of(search: Search, state: State, step: tuple[Any, ...]) -> dict[str, Any] | None:
    """The event that a step of a script stands for, in the present state."""
    kind, who, *rest = step
    if kind == "stray":
        return dict(who)
    worker = f"w{who}"
    if kind == "ask":
        return {"e": "work_requested", "worker": worker}
    index = state.assignment(worker)
    if index is None:
        return None
    if kind == "report":
        length = state.trials[index].target_length or search.next_report(state, index) or TOP
        return {
            "e": "validated",
            "trial": index,
            "length": length,
            "metric": rest[0],
            **({} if search.compares_one else {"metrics": values(rest[0], index, length)}),
        }
    return {
        "e": "run_ended",
        "trial": index,
        "worker": worker,
        "outcome": rest[0],
        "fencing_token": state.trials[index].fencing_token,
        "checkpoint": f"c{index}",
    }


def check(search: Search, state: State) -> None:
    """The promises that hold after every event."""
    trials = state.trials
    assert state.assigned() == {t.worker: i for i, t in enumerate(trials) if t.worker is not None}
    assert all((t.status == "assigned") == (t.worker is not None) for t in trials)
    assert sorted(state.waiting()) == [i for i, t in enumerate(trials) if t.status == "waiting"]
    assert state.open == sum(t.status != "closed" for t in trials)
    for outcome, count in (
        ("error", state.failures),
        ("canceled", state.cancels),
        ("invalid_hp", state.invalid),
    ):
        assert count == sum(t.outcome == outcome for t in trials)
    assert all((t.status == "closed") == (t.outcome is not None) for t in trials)
    assert state.done == (state.open == 0)
    assert state.done or state.runnable_soon, "nothing waits or runs, and it isn't over"
    assert 0.0 <= search.progress(state) <= 1.0
    if not state.begins_nothing:  # then nobody is judged any more
        check_rungs(search, state)


def check_rungs(search: Search, state: State) -> None:
    """Each rung has every trial that came to it once, in order; the best of them went on."""
    for number, bracket in enumerate(state.brackets):
        own = [
            i
            for i, t in enumerate(state.trials)
            if t.bracket == number and t.outcome != "invalid_hp"
        ]
        assert len(own) <= bracket.max_trials
        for level, rung in enumerate(bracket.rungs):
            there = [i for i in own if len(state.trials[i].rung_results) > level]
            assert sorted(i for _, _, i in rung.results) == there
            assert rung.results == sorted(rung.results)
            if search.compares_one:
                assert [r[:2] for r in rung.results] == [
                    state.trials[i].rung_results[level] for _, _, i in rung.results
                ]
            else:
                check_ranks(rung)
            coming = [i for i in own if state.trials[i].rung == level and i not in there]
            assert rung.outstanding == len(coming)
            assert all(state.trials[i].status != "closed" for i in coming)


def check_ranks(rung: Rung) -> None:
    """The score of each result is its rank among all of them."""
    trials = sorted(rung.compared)
    expected = fronts([rung.compared[index] for index in trials])
    ranks = {trials[place]: rank for rank, front in enumerate(expected) for place in front}
    assert {index: score for score, _, index in rung.results} == ranks


def check_promoted(search: Search, state: State) -> None:
    """The best 1/divisor of every rung were promoted (unless they were already let go)."""
    for bracket in state.brackets:
        for level, rung in enumerate(bracket.rungs[:-1]):
            best = rung.results[: int(len(rung.results) / search.searcher["divisor"])]
            for _, _, index in best:
                trial = state.trials[index]
                assert trial.rung > level or trial.final


def finish(search: Search, state: State) -> None:
    """Bring a search to its end: whoever had a trial is lost, new workers do their work."""
    for index in state.assigned().values():
        leave(search, state, index, "lost")
    for _ in range(1000):
        if state.done:
            return
        for n in range(WORKERS):
            taken = ask(search, state, f"w{n}")
            if taken is not None:
                train(search, state, taken, lambda i, length: i % 5, top=TOP)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_history_keeps_the_promises(name: str, steps: list[tuple[Any, ...]]) -> None:
    """Reports, crashes, lost workers, duplicates, late and broken events in any order: counts
    stay right, an event that comes twice counts once, dumping and loading in the middle changes
    nothing, valid samples never exceed max_trials, and the search ends."""
    fields = dict(METHODS[name])
    chosen = search(fields.pop("name"), SPACE, **fields)
    state, history = chosen.initial(), []
    promoted: list[int] = []
    for step in steps:
        event = event_of(chosen, state, step)
        if event is None:
            continue
        rungs = [trial.rung for trial in state.trials]
        chosen.apply(state, [event])
        history.append(event)
        check(chosen, state)
        once = chosen.dump(state)
        if step[0] != "stray":
            chosen.apply(state, [event])
            assert chosen.dump(state) == once, "an event that came twice counted twice"
        assert all(t.rung >= rung for t, rung in zip(state.trials, rungs, strict=False))
        promoted += [i for i, rung in enumerate(rungs) if state.trials[i].rung > rung]
        state = chosen.load(once)
    if (name.startswith("promotion") or name == "adaptive") and not state.begins_nothing:
        check_promoted(chosen, state)
    assert all(promoted.count(i) <= len(state.brackets[0].rungs) - 1 for i in promoted)
    again = chosen.initial()
    chosen.apply(again, history)
    assert chosen.dump(again) == chosen.dump(state), "the same events, another state"
    finish(chosen, state)
    check(chosen, state)
    valid = sum(t.outcome != "invalid_hp" for t in state.trials)
    expected = {"single": 1, "pbt": state.created}.get(name, MAX_TRIALS)
    assert valid <= expected
    if state.abandoned:
        assert state.verdict == "error"
    elif not state.ended and name not in ("single", "grid", "pbt"):
        assert valid == expected
    assert state.verdict in ("completed", "error", "canceled")


@settings(max_examples=30, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**32 - 1))
def test_samples_depend_on_the_seed_and_the_order_of_creation_alone(
    steps: list[tuple[Any, ...]], seed: int
) -> None:
    """Whatever happens in a search, trial k has the sample that it has in any with that seed."""
    asha = search("adaptive_asha", SPACE, seed, max_trials=MAX_TRIALS, **BY_LENGTH)
    random = search("random", SPACE, seed, max_trials=100, max_concurrent_trials=0)
    state, undisturbed = asha.initial(), random.initial()
    for step in steps:
        event = event_of(asha, state, step)
        asha.apply(state, [event] if event else [])
    finish(asha, state)
    for index in reversed(range(state.created)):
        assert asha.plan(state, index) == random.plan(undisturbed, index)


def test_a_worker_lost_too_often_is_an_error() -> None:
    """A trial whose job vanishes again and again fails after max_restarts times."""
    chosen = search("random", max_trials=1)
    state = chosen.initial()
    for n in range(6):
        assert ask(chosen, state, f"w{n}") == 0
        assert state.trials[0].fencing_token == n + 1
        leave(chosen, state, 0, "lost")
    assert (state.trials[0].outcome, state.verdict) == ("error", "error")


def test_who_gave_way_is_first_in_the_queue() -> None:
    """Trials that were preempted go before promoted ones, those before new ones."""
    chosen = search("async_halving", num_rungs=2, **CONCURRENT, **BY_LENGTH)
    state = begun(chosen, 3)
    for index, metric in ((0, 0.1), (1, 0.2)):
        chosen.apply(state, [{"e": "validated", "trial": index, "length": 9, "metric": metric}])
        leave(chosen, state, index, "out_of_ops")
    assert state.waiting() == [3, 4]
    leave(chosen, state, 2, "released")
    assert state.waiting() == [2, 3, 4]
    ask(chosen, state, "w2")
    chosen.apply(state, [{"e": "validated", "trial": 2, "length": 9, "metric": 0.3}])
    assert state.waiting() == [0, 3, 4]


def test_the_end_record_of_an_earlier_run_changes_nothing() -> None:
    """A worker that has the same trial again is not taken off it by what it said before."""
    chosen = search("random", max_trials=1)
    state = chosen.initial()
    ask(chosen, state)
    left = {"e": "run_ended", "trial": 0, "worker": "w", "outcome": "released", "fencing_token": 1}
    chosen.apply(state, [left, {"e": "work_requested", "worker": "w"}])
    before = chosen.dump(state)
    chosen.apply(state, [left])
    assert (chosen.dump(state), state.trials[0].fencing_token) == (before, 2)
