"""Halving in both forms against the worked tables of the original."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from detslurm.searcher import State
from detslurm.searcher.halving.brackets import bracket_plans, share_concurrency, share_trials
from detslurm.searcher.halving.rungs import rung_units
from tests.searcher.drive import (
    Metric,
    ask,
    begun,
    leave,
    reached,
    report,
    run,
    search,
    take,
    to_end,
    train,
)

ASHA: dict[str, Any] = {"num_rungs": 3, "divisor": 3, "max_trials": 12}
PROMOTION = {**ASHA, "max_length": {"batches": 9000}}
STOPPING = {**ASHA, "time_metric": "batches", "max_time": 900, "max_concurrent_trials": 3}


@pytest.mark.parametrize(
    ("num_rungs", "top", "divisor", "units"),
    [
        (3, 9, 3, [1, 3, 9]),
        (4, 10, 2, [1, 2, 5, 10]),
        (1, 9, 3, [9]),
        (3, 900, 3, [100, 300, 900]),
        (3, 9000, 3, [1000, 3000, 9000]),
        (3, 576_000, 3, [64_000, 192_000, 576_000]),
        (3, 12, 3, [1, 4, 12]),
    ],
)
def test_rungs_stand_where_the_tables_say(
    num_rungs: int, top: int, divisor: float, units: list[int]
) -> None:
    """Each rung is 1/divisor of the one above, in whole units of at least 1."""
    assert rung_units(num_rungs, top, divisor) == units


def test_promotion_with_a_constant_metric() -> None:
    """Equals keep their order: 8 of 12 stay on the first rung, 3 on the second, 1 goes on."""
    state = run(search("async_halving", **PROMOTION), lambda i, length: 1.0)
    assert Counter(reached(state)) == {1000: 8, 3000: 3, 9000: 1}
    assert state.trials[0].reached == 9000


def test_promotion_with_worsening_metrics() -> None:
    """The best trial trains to the top, the next three to the second rung."""
    state = run(search("async_halving", **PROMOTION), lambda i, length: (i + 1) / 100)
    assert reached(state) == [9000, 3000, 3000, 3000] + [1000] * 8
    assert {t.outcome for t in state.trials} == {"completed"}


def test_promotion_of_a_trial_that_failed_makes_room() -> None:
    """With 0.10, 0.11, 0.12 (fails), 0.01, 0.02 ... the first trial still reaches the second rung
    at the least: it was promoted before the better ones came."""
    chosen = search("async_halving", **PROMOTION, max_concurrent_trials=3)
    metrics = [0.10, 0.11, 0.12, *(n / 100 for n in range(1, 10))]
    state = begun(chosen, 3)
    report(chosen, state, 0, 1000, 0.10)
    report(chosen, state, 1, 1000, 0.11)
    leave(chosen, state, 2, "error")
    assert state.trials[0].target_length == 3000
    for first in (0, 1):
        train(chosen, state, first, lambda i, length: metrics[i])
    for index in to_end(chosen, state):
        train(chosen, state, index, lambda i, length: metrics[i])
    assert state.trials[0].reached == 3000
    assert (state.trials[2].outcome, state.created) == ("error", 12)


def test_promotion_with_one_rung_trains_everything() -> None:
    """With a single rung every trial trains to the full length."""
    fields = {**PROMOTION, "num_rungs": 1}
    assert reached(run(search("async_halving", **fields), lambda i, n: i)) == [9000] * 12


def test_larger_is_better_promotes_the_largest() -> None:
    """The sign is turned where larger is better."""
    chosen = search("async_halving", **PROMOTION, smaller_is_better=False)
    state = run(chosen, lambda i, length: -i)
    assert reached(state)[0] == 9000


@pytest.mark.parametrize(
    "bad", [math.nan, None, "nan", True, {"a": 1}, 10**400, math.inf, -math.inf]
)
@pytest.mark.parametrize("smaller", [True, False])
def test_a_metric_that_is_no_number_is_the_worst(bad: Any, smaller: bool) -> None:
    """A trial whose metric is NaN is never promoted while any other waits."""
    chosen = search("async_halving", smaller_is_better=smaller, **PROMOTION)
    state = run(chosen, lambda i, length: bad if i % 2 else (1 - i / 100) * (1 if smaller else -1))
    assert all(n == 1000 for n in reached(state)[1::2])
    assert 9000 in reached(state)


def test_what_diverges_is_never_trained_further() -> None:
    """Where no trial has a number, none goes on: by promotion none is trained beyond the first
    rung, by stopping each is stopped there."""
    chosen = search("async_halving", **PROMOTION)
    state = run(chosen, lambda i, length: math.nan)
    assert state.done and reached(state) == [1000] * 12
    stopping = search("async_halving", **{**STOPPING, "num_rungs": 2, "max_time": 3})
    state = stopping.initial()
    for index in range(3):
        ask(stopping, state, f"w{index}")
        report(stopping, state, index, 1, math.nan)
    assert [t.stop for t in state.trials[:3]] == [True, True, True]


def test_the_first_of_three_is_promoted_while_it_still_runs() -> None:
    """A result of another trial can raise the target of one that has reported and not left."""
    chosen = search("async_halving", **PROMOTION, max_concurrent_trials=3)
    state = chosen.initial()
    for index in range(3):
        assert ask(chosen, state, f"w{index}") == index
    report(chosen, state, 0, 1000, 0.1)
    report(chosen, state, 1, 1000, 0.2)
    assert state.trials[0].target_length == 1000
    report(chosen, state, 2, 1000, 0.3)
    assert (state.trials[0].target_length, state.trials[0].status) == (3000, "assigned")
    leave(chosen, state, 0, "out_of_ops")  # its program had seen no greater target length yet
    assert state.waiting()[0] == 0
    assert ask(chosen, state, "w0") == 0


def test_stopping_judges_the_first_reports() -> None:
    """The first report goes on; a better one too; a worse one stops its trial at its rung."""
    chosen = search("async_halving", **{**STOPPING, "num_rungs": 2, "max_time": 3})
    state = begun(chosen, 3)
    assert [chosen.next_report(state, i) for i in range(3)] == [1, 1, 1]
    report(chosen, state, 0, 1, 0.5)
    report(chosen, state, 1, 1, 0.4)
    report(chosen, state, 2, 1, 0.6)
    assert [t.stop for t in state.trials[:3]] == [False, False, True]
    assert [t.rung for t in state.trials[:3]] == [1, 1, 0]
    assert [chosen.next_report(state, i) for i in range(3)] == [3, 3, None]
    assert state.created == 4


def test_stopping_with_worsening_metrics() -> None:
    """10 trials, each worse than the one before: nine stop at 100, the first trains to 900."""
    fields = {**STOPPING, "max_trials": 10}
    state = run(search("async_halving", **fields), lambda i, n: i, workers=3, top=900)
    assert reached(state) == [900] + [100] * 9
    assert [t.outcome for t in state.trials] == ["completed"] + ["stopped"] * 9


@pytest.mark.parametrize("metric", [lambda i, n: -i, lambda i, n: 1.0])
def test_stopping_lets_newcomers_go_on_that_are_as_good(metric: Metric) -> None:
    """With improving metrics all go on, and with equal ones too: ties favour the newcomer."""
    fields = {**STOPPING, "max_trials": 10}
    state = run(search("async_halving", **fields), metric, workers=3, top=900)
    assert reached(state) == [900] * 10


def test_stop_once_asks_for_one_rung_after_the_other() -> None:
    """The older form of stopping: the target length grows from rung to rung, and nobody pauses."""
    fields = {**PROMOTION, "stop_once": True}
    chosen = search("async_halving", **fields)
    state = chosen.initial()
    ask(chosen, state)
    assert state.trials[0].target_length == 1000
    report(chosen, state, 0, 1000, 1.0)
    assert state.trials[0].target_length == 3000
    state = run(chosen, lambda i, n: i)
    assert reached(state) == [9000] + [1000] * 11


def test_one_report_can_pass_several_rungs() -> None:
    """A trial that never reports exactly at a rung is judged by its first report beyond it."""
    chosen = search("async_halving", **STOPPING)
    state = chosen.initial()
    ask(chosen, state)
    report(chosen, state, 0, 450, 0.5)
    assert [len(rung.results) for rung in state.brackets[0].rungs] == [1, 1, 0]
    assert chosen.next_report(state, 0) == 900


def test_a_stopped_trial_that_reports_again_changes_nothing() -> None:
    """It is judged once: no second stop, no second trial, whatever comes late."""
    chosen = search("async_halving", **STOPPING)
    state = begun(chosen, 3)
    report(chosen, state, 0, 100, 0.1)
    report(chosen, state, 1, 100, 0.5)
    assert state.trials[1].stop
    before = chosen.dump(state)
    for length in (100, 300, 900):
        report(chosen, state, 1, length, 0.0)
    report(chosen, state, 0, 100, 0.9)  # a restarted trial reports its past again
    assert chosen.dump(state) == before


def test_a_stopped_trial_is_completed_however_it_leaves() -> None:
    """Its exit counts as completion, and it takes no place among the failures."""
    chosen = search("async_halving", **{**STOPPING, "max_trials": 3})
    state = chosen.initial()
    for index in range(3):
        ask(chosen, state, f"w{index}")
        report(chosen, state, index, 100, index)
    leave(chosen, state, 1, "released")
    leave(chosen, state, 2, "error")
    assert [state.trials[i].outcome for i in (1, 2)] == ["stopped", "stopped"]
    assert state.failures == 0


@pytest.mark.parametrize("fields", [PROMOTION, STOPPING], ids=["promotion", "stopping"])
@pytest.mark.parametrize("how", ["completed", "error"])
def test_trials_that_end_or_fail_do_not_shrink_the_search(fields: dict[str, Any], how: str) -> None:
    """Programs that end below the top at once: all max_trials get their turn."""
    chosen = search("async_halving", **fields)
    state = chosen.initial()
    for index in to_end(chosen, state):
        leave(chosen, state, index, how)
    assert (state.created, state.verdict) == (12, how)


@pytest.mark.parametrize("fields", [PROMOTION, STOPPING], ids=["promotion", "stopping"])
def test_invalid_samples_are_replaced(fields: dict[str, Any]) -> None:
    """Every third trial refuses its sample: 12 valid ones are judged all the same."""
    chosen = search("async_halving", **fields)
    state = chosen.initial()
    for index in to_end(chosen, state):
        if index % 3 == 0:
            leave(chosen, state, index, "invalid_hp")
        else:
            train(chosen, state, index, lambda i, n: i, top=900)
    assert state.created - state.invalid == 12
    assert len(state.brackets[0].rungs[0].results) == 12


def test_a_program_that_refuses_every_sample_comes_to_an_end() -> None:
    """Replacing stops at some point; the search ends instead of running for ever."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("random", {"max_trials": 5}),
        ("async_halving", PROMOTION),
        ("async_halving", STOPPING),
        ("pbt", {"population_size": 4, "num_rounds": 2, "length_per_round": 5}),
    ]
    for name, fields in cases:
        chosen = search(name, **fields)
        state = chosen.initial()
        for _ in range(10_000):
            if state.done:
                break
            index = take(chosen, state)
            leave(chosen, state, index, "invalid_hp")
        assert state.done
        assert state.invalid == state.created > 100


def test_a_trial_that_fails_after_its_report_keeps_its_result() -> None:
    """It counts on its rung once, and when it is promoted it fails there."""
    chosen = search("async_halving", **PROMOTION, max_concurrent_trials=2)
    state = begun(chosen, 2)
    report(chosen, state, 0, 1000, 0.1)
    leave(chosen, state, 0, "error")
    rungs = state.brackets[0].rungs
    assert [len(rung.results) for rung in rungs] == [1, 0, 0]
    report(chosen, state, 1, 1000, 0.2)
    leave(chosen, state, 1, "out_of_ops")
    taken = take(chosen, state)
    report(chosen, state, taken, 1000, 0.3)
    assert rungs[1].results == [(math.inf, 0, 0)]


@pytest.mark.parametrize("left_first", [True, False])
def test_a_replacement_after_the_rung_was_let_go_is_let_go_too(left_first: bool) -> None:
    """A promoted trial that refuses its sample late is replaced, and the search still ends; who
    was let go is not asked for more, though it would be the best now."""
    fields: dict[str, Any] = {"num_rungs": 2, "max_trials": 2, "divisor": 2, "max_length": 10}
    chosen = search("async_halving", **fields)
    state = begun(chosen, 2)
    report(chosen, state, 0, 5, 0.1)
    report(chosen, state, 1, 5, 0.2)
    if left_first:
        leave(chosen, state, 1, "out_of_ops")
    leave(chosen, state, 0, "invalid_hp")
    assert ask(chosen, state) == 2
    train(chosen, state, 2, lambda i, n: 0.3)
    if not left_first:
        leave(chosen, state, 1, "out_of_ops")
    assert (state.done, state.created) == (True, 3)
    assert state.trials[1].target_length == 5


def test_a_late_invalid_sample_makes_room_above() -> None:
    """When one of the promoted turns out to be invalid, the next best on its rung is promoted."""
    fields: dict[str, Any] = {"num_rungs": 2, "max_trials": 9, "divisor": 2, "max_length": 10}
    chosen = search("async_halving", **fields)
    state = chosen.initial()
    for index in range(5):
        ask(chosen, state, f"w{index}")
        report(chosen, state, index, 5, index)
    assert [state.trials[i].target_length for i in range(5)] == [10, 10, 5, 5, 5]
    leave(chosen, state, 0, "invalid_hp")
    assert [state.trials[i].target_length for i in range(1, 5)] == [10, 10, 5, 5]


def _plans(**fields: Any) -> list[tuple[int, int, int]]:
    plans = bracket_plans({"name": "adaptive_asha", "metric": "x", **fields})
    return [(len(plan.units), plan.max_trials, plan.concurrency) for plan in plans]


def test_brackets_share_trials_as_the_tables_say() -> None:
    """A bracket's share follows divisor^(rungs-1)/rungs; the remainder goes to the first."""
    assert share_trials(20, 3, [3, 2, 1]) == [12, 5, 3]
    assert share_trials(50, 3, [4, 3]) == [35, 15]
    assert share_trials(50, 4, [3, 2]) == [37, 13]
    assert share_trials(100, 4, [4, 3, 2]) == [70, 22, 8]


def test_brackets_share_concurrency_as_the_tables_say() -> None:
    """Evenly, the remainder to the first; without a limit what the smallest bracket needs."""
    assert share_concurrency(0, 3, [9, 3, 1]) == [3, 3, 3]
    assert share_concurrency(11, 3, [9, 3, 1]) == [4, 4, 3]
    assert share_concurrency(0, 4, [40, 10]) == [10, 10]


def test_brackets_of_adaptive_asha_are_those_of_the_tables() -> None:
    """Rungs, trials and concurrency of each bracket."""
    standard = {"time_metric": "batches", "max_time": 100, "divisor": 4, "max_trials": 10}
    assert _plans(**standard, max_concurrent_trials=2) == [(2, 7, 1), (1, 3, 1)]
    conservative = {"mode": "conservative", "max_time": 1000, "divisor": 3, "max_trials": 10}
    assert _plans(**conservative, max_concurrent_trials=5) == [(3, 7, 2), (2, 2, 2), (1, 1, 1)]
    given = {"max_time": 900, "divisor": 3, "max_trials": 20, "bracket_rungs": [1, 3, 2]}
    assert _plans(**given, max_concurrent_trials=0) == [(3, 12, 3), (2, 5, 3), (1, 3, 3)]


def test_a_power_of_the_divisor_has_all_its_rungs() -> None:
    """243 is 3 to the 5th, whatever the logarithm of a computer says."""
    aggressive = {"mode": "aggressive", "max_time": 243, "divisor": 3, "max_trials": 1000}
    assert _plans(**aggressive, max_rungs=9)[0][0] == 6


def test_adaptive_asha_judges_each_bracket_by_itself() -> None:
    """9 trials, each worse than the one before: 5 stop at 10 and 1 trains to 90 in the first
    bracket; 2 stop at 30 and 1 trains to 90 in the second."""
    fields: dict[str, Any] = {
        "max_trials": 9,
        "divisor": 3,
        "time_metric": "batches",
        "max_time": 90,
    }
    state = run(search("adaptive_asha", **fields), lambda i, n: i, workers=4, top=90)
    assert _by_bracket(state) == [{90: 1, 10: 5}, {90: 1, 30: 2}]


def _by_bracket(state: State) -> list[dict[int, int]]:
    return [
        dict(Counter(t.reached for t in state.trials if t.bracket == number))
        for number in range(len(state.brackets))
    ]


def test_progress_is_the_mean_of_the_brackets() -> None:
    """It grows from 0 to 1, by the part of the trials that have been judged."""
    chosen = search("adaptive_asha", max_trials=9, divisor=3, max_length={"batches": 90})
    state = chosen.initial()
    seen = [chosen.progress(state)]
    for index in to_end(chosen, state):
        train(chosen, state, index, lambda i, n: i)
        seen.append(chosen.progress(state))
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
