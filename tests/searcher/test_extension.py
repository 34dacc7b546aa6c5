"""A search that goes on with more trials, longer ones or more rounds is the larger search."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.searcher import Search, State
from detslurm.searcher.halving.brackets import larger_shares
from detslurm.searcher.halving.rungs import longer_units
from tests.searcher.drive import Metric, ask, run, search, train

Events = list[dict[str, Any]]

HALVING: dict[str, Any] = {"name": "async_halving", "num_rungs": 3, "divisor": 2}
BY_LENGTH: dict[str, Any] = {"max_length": {"batches": 8}}
BY_TIME: dict[str, Any] = {"time_metric": "batches", "max_time": 8}
TWO: dict[str, Any] = {"metrics": [{"name": "loss"}, {"name": "size"}]}
SEEDS = settings(max_examples=60, deadline=None)


def drive(found: Search, state: State, seed: int, stop_after: int = 10_000) -> Events:
    """Let three workers do what comes, in an order by the seed; the events, less the requests that
    got nothing."""
    dice, log = random.Random(seed), Events()

    def add(**event: Any) -> None:
        log.append(event)
        found.apply(state, [event])

    for _ in range(stop_after):
        if state.done or not (state.workers or state.waiting()):
            break
        worker = f"w{dice.randrange(3)}"
        index = state.assignment(worker)
        if index is None:
            if state.waiting():
                add(e="work_requested", worker=worker)
                new = state.assignment(worker)
                if found.name == "optuna" and new is not None:
                    known = len(state.history.trials) if state.history else 0
                    add(e="sampled", trial=new, hparams={"x": new}, after=known)
            continue
        trial = state.trials[index]
        ends = {"trial": index, "worker": worker, "checkpoint": f"c{index}"}
        if dice.random() < 0.05:
            add(e="run_ended", **ends, outcome=dice.choice(["error", "preempted", "preempted"]))
        elif trial.stop or trial.settled:
            add(e="run_ended", **ends, outcome="out_of_ops")
        else:
            target = trial.target_length or found.next_report(state, index)
            metric = dice.choice([dice.random(), 0.5, 0.5, math.nan])
            loss = None if math.isnan(metric) else metric  # as the chief reports it
            two = {} if found.compares_one else {"metrics": {"loss": loss, "size": index % 4}}
            add(e="validated", trial=index, length=target, metric=metric, **two)
    return log


def extended(larger: Search, smaller: Search, events: Events) -> State:
    """The larger search after the event that carries the smaller."""
    state = larger.initial()
    larger.apply(state, [prefix(smaller, events)])
    return state


def prefix(smaller: Search, events: Events) -> dict[str, Any]:
    """The event with which a search goes on."""
    plain = {"e": "extended", "searcher": dict(smaller.searcher), "max_restarts": 5}
    return {**plain, "events": events}


def essence(state: State) -> dict[str, Any]:
    """The state less the numbers of tickets in the queue."""
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    queue = [trial for _, _, trial in sorted(state.queue)]
    return {**plain, "queue": queue, "next_ticket": 0, "requests": {}}


@pytest.mark.parametrize(
    "by", [BY_LENGTH, BY_TIME, {**BY_LENGTH, "stop_once": True}, {**BY_LENGTH, **TWO}]
)
@SEEDS
@given(
    seed=st.integers(0, 10**6),
    few=st.integers(2, 7),
    more=st.integers(0, 9),
    at_once=st.integers(1, 4),
)
def test_halving_with_more_trials_is_the_larger_search(
    by: dict[str, Any], seed: int, few: int, more: int, at_once: int
) -> None:
    """Workers of the larger search that take no trial but those of the smaller see the same."""
    at_once = min(at_once, few)
    smaller, larger = (
        search(**HALVING, **by, max_trials=n, max_concurrent_trials=at_once)
        for n in (few, few + more)
    )
    first = smaller.initial()
    events = drive(smaller, first, seed)
    whole = larger.initial()
    larger.apply(whole, events)
    found = extended(larger, smaller, events)
    assert essence(found) == essence(whole)
    assert essence(larger.load(larger.dump(found))) == essence(whole)
    events_after = drive(larger, found, seed + 1)
    larger.apply(whole, events_after)
    assert found.done and essence(found) == essence(whole)


@SEEDS
@given(seed=st.integers(0, 10**6), few=st.integers(1, 4), more=st.integers(0, 3))
def test_pbt_with_more_rounds_is_the_longer_search(seed: int, few: int, more: int) -> None:
    fields: dict[str, Any] = {"population_size": 4, "length_per_round": 5}
    fields["replace_function"] = {"truncate_fraction": 0.5}
    shorter, longer = (search("pbt", **fields, num_rounds=n) for n in (few, few + more))
    first = shorter.initial()
    events = drive(shorter, first, seed)
    whole = longer.initial()
    longer.apply(whole, events)
    assert essence(extended(longer, shorter, events)) == essence(whole)


@SEEDS
@given(seed=st.integers(0, 10**6), few=st.integers(1, 6), more=st.integers(0, 6))
def test_optuna_with_more_trials_is_the_larger_search(seed: int, few: int, more: int) -> None:
    """The history that samplers see, too."""
    at_once = min(2, few)
    smaller, larger = (
        search("optuna", max_trials=n, max_concurrent_trials=at_once, max_length=4)
        for n in (few, few + more)
    )
    first = smaller.initial()
    events = drive(smaller, first, seed)
    whole = larger.initial()
    larger.apply(whole, events)
    assert essence(extended(larger, smaller, events)) == essence(whole)


@pytest.mark.parametrize(
    "fields",
    [
        {**HALVING, **BY_LENGTH},
        {**HALVING, **BY_TIME},
        {"name": "adaptive_asha", "divisor": 2, **BY_LENGTH},
        {"name": "optuna", "max_length": 4},
        {**HALVING, **BY_LENGTH, **TWO},
    ],
    ids=["promotion", "stopping", "adaptive", "optuna", "two metrics"],
)
@SEEDS
@given(seed=st.integers(0, 10**6), cut=st.integers(0, 60))
def test_it_goes_on_from_any_moment_and_again(fields: dict[str, Any], seed: int, cut: int) -> None:
    """The search before was killed: trials at work are queued again, and one that is extended twice
    holds its promises, too."""
    sizes = [search(**fields, max_trials=n, max_concurrent_trials=2) for n in (4, 6, 9)]
    first = sizes[0].initial()
    events = drive(sizes[0], first, seed, cut)
    events += first.run_ended_events(dict.fromkeys(first.workers, "preempted"))
    at_work = {i for i in first.workers.values() if not first.trials[i].settled}
    at_work -= {i for i in at_work if first.trials[i].stop}
    second = extended(sizes[1], sizes[0], events)
    assert not second.workers and at_work <= set(second.waiting())
    events = [prefix(sizes[0], events), *drive(sizes[1], second, seed + 1)]
    assert second.done
    third = extended(sizes[2], sizes[1], events)
    drive(sizes[2], third, seed + 2)
    assert third.done and third.created == 9
    failed = [i for i, trial in enumerate(second.trials) if trial.outcome == "error"]
    assert {third.trials[i].outcome for i in failed} <= {"error"}
    for bracket in third.brackets:
        assert bracket.outstanding == 0 and len(bracket.rungs[0].results) == bracket.max_trials


def test_only_a_first_event_extends() -> None:
    smaller, larger = (search(**HALVING, **BY_LENGTH, max_trials=n) for n in (2, 4))
    state = larger.initial()
    ask(larger, state)
    before = larger.dump(state)
    larger.apply(state, [prefix(smaller, [])])
    assert larger.dump(state) == before


def events_of(found: Search, metric: Metric) -> Events:
    """The events of a whole search with one worker."""
    log = Events()
    apply = found.apply

    def noted(state: State, events: Any) -> None:
        log.extend(events)
        apply(state, events)

    found.apply = noted  # type: ignore[method-assign]
    run(found, metric, top=100)
    return log


def test_a_longer_length_puts_rungs_on_top() -> None:
    """The best of what was the last rung goes on from its checkpoint, and the others pause until
    it is known that they are not needed."""
    shorter, longer = (
        search(**HALVING, max_length=length, max_trials=8, max_concurrent_trials=1)
        for length in (8, 16)
    )
    events = events_of(shorter, lambda trial, length: trial / 10)
    state = extended(longer, shorter, events)
    assert [rung.units for rung in state.brackets[0].rungs] == [2, 4, 8, 16]
    results = [index for _, _, index in state.brackets[0].rungs[2].results]
    assert state.waiting() == results[: max(len(results) // 2, 1)]
    promoted = state.trials[results[0]]
    assert (promoted.checkpoint, promoted.target_length) == (f"c{results[0]}-8", 16)
    drive(longer, state, 1)
    assert state.done and state.trials[results[0]].outcome == "completed"


def test_a_longer_time_lets_the_best_train_on() -> None:
    """Trials that were stopped stay so."""
    shorter, longer = (
        search(**HALVING, time_metric="batches", max_time=n, max_trials=4, max_concurrent_trials=1)
        for n in (8, 24)
    )
    events = events_of(shorter, lambda trial, length: -trial)
    state = extended(longer, shorter, events)
    assert [rung.units for rung in state.brackets[0].rungs] == [2, 4, 8, 16, 24]
    assert state.waiting() == [3, 2]
    assert longer.next_report(state, 3) == 16


def test_pruned_trials_of_optuna_stay_when_the_others_train_on() -> None:
    shorter, longer = (search("optuna", max_trials=2, max_length=n) for n in (4, 6))
    state, events = shorter.initial(), Events()

    def add(**event: Any) -> None:
        events.append(event)
        shorter.apply(state, [event])

    for index, stop in enumerate([False, True]):
        add(e="work_requested", worker="w")
        add(e="sampled", trial=index, hparams={"x": 0.5}, after=index)
        add(e="validated", trial=index, length=4, metric=1.0, stop=stop)
        add(e="run_ended", trial=index, worker="w", outcome="out_of_ops", checkpoint="c")
    assert state.done
    state = extended(longer, shorter, events)
    assert state.waiting() == [0] and state.trials[0].target_length == 6
    assert state.history is not None
    assert [known.state for known in state.history.trials.values()] == ["running", "pruned"]
    assert ask(longer, state) == 0
    train(longer, state, 0, lambda trial, length: 0.25)
    assert state.done and state.history.order == [0, 1, ~1, ~0]


@pytest.mark.parametrize(
    ("units", "longest", "divisor", "expected"),
    [
        ([1, 3, 9], 27, 3, [1, 3, 9, 27]),
        ([1, 3, 9], 81, 3, [1, 3, 9, 27, 81]),
        ([1, 3, 9], 9, 3, [1, 3, 9]),
        ([250, 1000], 1500, 4, [250, 1000, 1500]),
        ([1], 3, 1.5, [1, 2, 3]),
    ],
)
def test_rungs_above_the_last(
    units: list[int], longest: int, divisor: float, expected: list[int]
) -> None:
    assert longer_units(units, longest, divisor) == expected


@pytest.mark.parametrize(
    ("shares", "wanted", "expected"),
    [([12, 4], [24, 8], [24, 8]), ([5, 2, 2], [4, 3, 3], [5, 3, 2]), ([3, 1], [3, 1], [3, 1])],
)
def test_new_trials_alone_are_divided(
    shares: list[int], wanted: list[int], expected: list[int]
) -> None:
    assert larger_shares(shares, wanted) == expected
