"""single, random, grid, pbt and custom: who runs when, and what becomes of those that fail."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from detslurm.searcher import Create, RandomStream, Search, State, ValidateAfter
from detslurm.searcher.pbt import explore
from detslurm.searcher.sampling import Samples
from tests.searcher.drive import (
    SPACE,
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

LENGTH: dict[str, Any] = {"max_length": {"epochs": 5}}
PBT: dict[str, Any] = {
    "population_size": 5,
    "num_rounds": 3,
    "length_per_round": {"epochs": 2},
    "replace_function": {"truncate_fraction": 0.4},
}


def loss(index: int, length: int) -> float:
    """The later the trial, the worse."""
    return float(index)


@pytest.mark.parametrize(("atonce", "first"), [(3, 3), (0, 10), (16, 10)])
def test_random_begins_with_max_concurrent_trials(atonce: int, first: int) -> None:
    """One more begins whenever one closes, max_trials in all; 0 means no limit."""
    chosen = search("random", max_trials=10, max_concurrent_trials=atonce, **LENGTH)
    state = chosen.initial()
    assert state.waiting() == list(range(first))
    index = ask(chosen, state)
    assert index == 0
    train(chosen, state, 0, loss)
    assert state.created == min(first + 1, 10)
    assert [t.reached for t in run(chosen, loss, workers=3).trials] == [5] * 10


@pytest.mark.parametrize(
    ("name", "fields", "created"),
    [("single", {}, 1), ("random", {"max_trials": 3}, 4), ("grid", {}, 3)],
)
def test_only_random_replaces_an_invalid_sample(
    name: str, fields: dict[str, Any], created: int
) -> None:
    """A grid's point has no replacement, nor has the only trial of `single`."""
    space = {"x": {"type": "int", "minval": 1, "maxval": 3, "count": 3}}
    chosen = search(name, space, **fields)
    state = chosen.initial()
    index = ask(chosen, state)
    leave(chosen, state, index or 0, "invalid_hp")
    for index in to_end(chosen, state):
        leave(chosen, state, index, "completed")
    assert (state.created, state.verdict) == (created, "completed")


def test_a_search_is_in_error_only_if_all_trials_are() -> None:
    """One that completes is enough; all canceled is canceled."""
    for ways, verdict in (
        (["error", "error", "completed"], "completed"),
        (["error", "error", "error"], "error"),
        (["invalid_hp", "error", "error", "error"], "error"),
        (["non_retryable"], "error"),
        (["canceled", "canceled", "canceled"], "canceled"),
        (["canceled", "error", "canceled"], "completed"),
    ):
        chosen = search("random", max_trials=3)
        state = chosen.initial()
        for how in ways:
            index = take(chosen, state)
            assert state.verdict is None
            leave(chosen, state, index, how)
        assert state.verdict == verdict


def test_a_grid_runs_from_its_end() -> None:
    """The samples of the fold are those of the plain plan."""
    space = {"x": {"type": "int", "minval": 0, "maxval": 4, "count": 5}}
    chosen = search("grid", space)
    state = run(chosen, loss)
    assert [chosen.plan(state, i).hparams["x"] for i in range(5)] == [4, 3, 2, 1, 0]
    assert [chosen.plan(state, i) for i in (4, 0)] == [
        Samples({"name": "grid"}, space, 0).plan(i) for i in (4, 0)
    ]
    with pytest.raises(IndexError):
        chosen.plan(state, 5)


def test_progress_counts_trials_and_their_parts() -> None:
    """Units trained of all units; a closed trial counts whole."""
    chosen = search("random", max_trials=4, **LENGTH)
    state = chosen.initial()
    ask(chosen, state)
    train(chosen, state, 0, loss)
    ask(chosen, state)
    report(chosen, state, 1, 2, 0.5)
    report(chosen, state, 1, 1, 0.9)  # of a run that went back to a checkpoint
    assert state.trials[1].metric == 0.5
    assert chosen.progress(state) == pytest.approx((1 + 2 / 5) / 4)


def _round(chosen: Search, state: State, metric: Metric = loss) -> None:
    """Every member trains one round."""
    members = list(state.members)
    for n in range(len(members)):
        index = ask(chosen, state, f"w{n}")
        assert index in members
    for index in members:
        train(chosen, state, index, metric)


def test_pbt_copies_the_best_over_the_worst() -> None:
    """After a round the worst two are closed and copies of the best two start from the
    checkpoints that those have left, where the next round begins."""
    chosen = search("pbt", **PBT)
    state = chosen.initial()
    assert (state.waiting(), chosen.unit) == ([0, 1, 2, 3, 4], "epochs")
    _round(chosen, state)
    assert [state.trials[i].outcome for i in (3, 4)] == ["completed"] * 2
    assert state.waiting() == [0, 1, 2, 5, 6]
    copies = [state.trials[i] for i in (5, 6)]
    assert [(t.source, t.source_checkpoint) for t in copies] == [(0, "c0-2"), (1, "c1-2")]
    assert [(t.reached, t.target_length) for t in copies] == [(2, 4)] * 2
    assert [state.trials[i].target_length for i in (0, 1, 2)] == [4] * 3
    _round(chosen, state)
    _round(chosen, state)
    assert (state.done, state.created, state.verdict) == (True, 9, "completed")
    assert sum(t.reached == 6 for t in state.trials) == 5


def test_pbt_keeps_no_secret() -> None:
    """Copies have the secrets of the configuration; the state, which others may read, has none."""
    secrets = {"api_key": "hush-hush", "credentials": {"aws": "hush-hush"}}
    chosen = search("pbt", {**SPACE, **secrets}, **PBT)
    state = chosen.initial()
    _round(chosen, state)
    assert state.trials[5].hparams and b"hush" not in chosen.dump(state)
    copied = chosen.plan(chosen.load(chosen.dump(state)), 5).hparams
    assert {name: copied[name] for name in secrets} == secrets


def test_pbt_ranks_by_the_metric() -> None:
    """Where larger is better the last of the population are its best."""
    chosen = search("pbt", smaller_is_better=False, **PBT)
    state = chosen.initial()
    _round(chosen, state)
    assert state.members == [4, 3, 2, 5, 6]
    assert [state.trials[i].source for i in (5, 6)] == [4, 3]


def test_pbt_waits_for_the_last_member_to_leave() -> None:
    """A report ends nothing: the checkpoint that counts is what a member leaves behind."""
    chosen = search("pbt", **PBT)
    state = begun(chosen, 5)
    for index in range(5):
        report(chosen, state, index, 2, index)
    for index in range(4):
        leave(chosen, state, index, "out_of_ops", checkpoint=f"c{index}")
        assert state.waiting() == []
    leave(chosen, state, 4, "lost")  # it had reported: nothing of it is missing
    assert len(state.waiting()) == 5


def test_pbt_replaces_the_failed_first() -> None:
    """Members that failed, or ended by themselves, are the worst of their round."""
    chosen = search("pbt", **PBT)
    state = begun(chosen, 5)
    leave(chosen, state, 0, "error")
    leave(chosen, state, 1, "completed")
    leave(chosen, state, 2, "canceled")
    for index in (3, 4):
        train(chosen, state, index, loss)
    assert state.members == [3, 4, 5, 6, 7]
    assert [state.trials[i].source for i in (5, 6, 7)] == [3, 4, 3]


def test_pbt_gives_up_members_that_diverged() -> None:
    """They count as failed: nobody trains on or copies what has no finite metric."""
    chosen = search("pbt", **PBT)
    state = chosen.initial()
    bad = {1: math.nan, 2: -math.inf, 4: None}
    _round(chosen, state, lambda i, length: bad.get(i, loss(i, length)))
    assert [state.trials[i].outcome for i in bad] == ["completed"] * 3
    assert state.members == [0, 3, 5, 6, 7]
    assert [state.trials[i].source for i in (5, 6, 7)] == [0, 3, 0]
    assert run(chosen, lambda i, length: math.nan).created == 5


def test_pbt_without_any_checkpoint_begins_anew() -> None:
    """Where nobody left a checkpoint there is nothing to copy: new trials start from nothing."""
    chosen = search("pbt", **PBT)
    state = begun(chosen, 5)
    for index in range(5):
        report(chosen, state, index, 2, index)
        leave(chosen, state, index, "completed")
    fresh = [state.trials[i] for i in state.members[3:]]
    assert [(t.source, t.reached, t.target_length) for t in fresh] == [(None, 0, 4)] * 2


def test_pbt_makes_an_invalid_copy_again() -> None:
    """A copy whose hyperparameters are refused is replaced by another copy of the same trial."""
    chosen = search("pbt", **PBT)
    state = chosen.initial()
    _round(chosen, state)
    for n in range(5):
        ask(chosen, state, f"w{n}")
    leave(chosen, state, 5, "invalid_hp")
    again = state.trials[7]
    assert (again.source, again.source_checkpoint, again.reached) == (0, "c0-2", 2)
    assert 7 in state.members and 5 not in state.members


def test_pbt_ends_when_all_members_have_failed() -> None:
    """There is nothing left to copy."""
    chosen = search("pbt", **PBT)
    state = chosen.initial()
    for _ in range(5):
        index = take(chosen, state)
        leave(chosen, state, index, "error")
    assert (state.done, state.verdict) == (True, "error")


def test_pbt_explores_the_same_from_the_same_seed() -> None:
    """A copy's sample depends on the seed, its number and its original alone."""
    spaces = {"lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1}}
    samples = []
    for seed in (7, 7, 8):
        chosen = search("pbt", spaces, seed, **PBT)
        state = run(chosen, loss, workers=2)
        samples.append([chosen.plan(state, i).hparams["lr"] for i in range(state.created)])
    assert samples[0] == samples[1]
    assert set(samples[0]).isdisjoint(samples[2])


def test_exploring_stays_in_the_space() -> None:
    """Numbers are multiplied by 1 ± factor within their range, the rest is kept or drawn anew."""
    space = {
        "a": {"type": "int", "minval": 1, "maxval": 8},
        "b": {"type": "double", "minval": 0.0, "maxval": 1.0},
        "c": {"type": "categorical", "vals": ["p", "q", "r"]},
        "d": [1, 2],
        "n": {"e": {"type": "log", "base": 10, "minval": -3, "maxval": -1}, "f": {}},
        "z": {"type": "const", "val": None},
    }
    sample = {"a": 5, "b": 0.9, "c": "q", "d": [1, 2], "n": {"e": 0.01, "f": {}}, "z": None}
    stream = RandomStream(3)
    kept = [explore(space, sample, stream, 0.0, 0.2) for _ in range(50)]
    assert {s["a"] for s in kept} == {4, 6}
    assert {s["b"] for s in kept} == {0.9 * 0.8, 1.0}
    assert {s["n"]["e"] for s in kept} == {0.01 * 0.8, 0.01 * 1.2}
    assert all((s["c"], s["d"], s["n"]["f"], s["z"]) == ("q", [1, 2], {}, None) for s in kept)
    drawn = [explore(space, sample, stream, 1.0, 0.2) for _ in range(50)]
    assert {s["c"] for s in drawn} == {"p", "q", "r"}
    assert {s["a"] for s in drawn} == set(range(1, 9))


def custom() -> tuple[Search, State]:
    chosen = search("custom")
    return chosen, chosen.initial()


def answer(chosen: Search, state: State, *ops: dict[str, Any], after: int | None = None) -> None:
    """A custom method answers all events, or those up to `after`."""
    assert state.dialogue is not None
    last = state.dialogue.last if after is None else after
    chosen.apply(state, [{"e": "operations", "after": last, "ops": list(ops)}])


def heard(state: State) -> list[tuple[Any, ...]]:
    """The unanswered events with the trials' names, without their numbers."""
    assert state.dialogue is not None
    return [tuple(map(named, list(event.items())[1:])) for event in state.dialogue.events]


def request_id(name: str) -> str:
    return str(UUID(bytes=name.encode().rjust(16, b"\0")))


def named(item: tuple[str, Any]) -> Any:
    key, value = item
    return UUID(value).bytes.lstrip(b"\0").decode() if key == "request_id" else value


def create(name: str, **more: Any) -> dict[str, Any]:
    return {"op": "create", "request_id": request_id(name), "hparams": {"x": name}, **more}


def length(name: str, units: int) -> dict[str, Any]:
    return {"op": "validate_after", "request_id": request_id(name), "length": units}


def test_operations_may_hold_numbers_of_numpy() -> None:
    """Methods compute with numpy; the log keeps plain numbers."""
    trial = UUID(int=1)
    assert Create(trial, {"x": np.float64(0.5)}).to_dict()["hparams"] == {"x": 0.5}
    length: Any = np.int64(3)
    assert ValidateAfter(trial, length).to_dict()["length"] == 3
    with pytest.raises(TypeError, match="JSON has no object"):
        Create(trial, {"x": object()}).to_dict()


def test_a_custom_method_runs_its_trials() -> None:
    """Created, trained to each length, closed: the method hears of everything, in order."""
    chosen, state = custom()
    assert heard(state) == [("initial_operations",)]
    warm = create("b", checkpoint={"uuid": "u1"})
    answer(chosen, state, create("a"), length("a", 3), warm)
    assert heard(state) == [("trial_created", "a"), ("trial_created", "b")]
    assert state.waiting() == [0]
    assert state.trials[1].source_checkpoint == "u1"
    plan = chosen.plan(state, 1)
    assert (plan.hparams, plan.request_id) == ({"x": "b"}, request_id("b"))
    ask(chosen, state)
    train(chosen, state, 0, lambda i, n: {"any": "json"})
    assert heard(state)[2:] == [("validation_completed", "a", {"any": "json"}, 3)]
    answer(chosen, state, length("a", 5), close("b"))
    assert heard(state) == [("trial_closed", "b")]
    assert ask(chosen, state) == 0
    answer(chosen, state, close("a"), {"op": "progress", "progress": 0.5})
    assert chosen.progress(state) == 0.5
    leave(chosen, state, 0, "out_of_ops")
    assert not state.done
    answer(chosen, state, {"op": "shutdown"})
    assert (state.done, state.verdict) == (True, "completed")


def close(name: str) -> dict[str, Any]:
    return {"op": "close", "request_id": request_id(name)}


@pytest.mark.parametrize("moment", ["waiting", "running", "given back"])
def test_close_lets_a_trial_train_as_far_as_it_was_asked_to(moment: str) -> None:
    """Also where one answer creates, asks and closes; its validation is heard of before its end."""
    chosen, state = custom()
    answer(chosen, state, create("a"), length("a", 3), *[close("a")] * (moment == "waiting"))
    assert ask(chosen, state) == 0
    if moment != "waiting":
        answer(chosen, state, close("a"), length("a", 9))
    if moment == "given back":
        leave(chosen, state, 0, "released")
        assert ask(chosen, state) == 0
    assert (state.trials[0].target_length, state.trials[0].settled) == (3, False)
    report(chosen, state, 0, 3, 0.5)
    leave(chosen, state, 0, "completed")
    assert heard(state)[-2:] == [("validation_completed", "a", 0.5, 3), ("trial_closed", "a")]
    assert state.trials[0].outcome == "completed"


@pytest.mark.parametrize("rests", [True, False])
def test_close_after_a_further_length(rests: bool) -> None:
    """`[ValidateAfter(6), Close]` after 3 trains to 6, whether the trial still runs or not."""
    chosen, state = custom()
    answer(chosen, state, create("a"), length("a", 3))
    ask(chosen, state)
    report(chosen, state, 0, 3, 0.5)
    if rests:
        leave(chosen, state, 0, "out_of_ops")
    answer(chosen, state, length("a", 6), close("a"))
    assert ask(chosen, state) == 0
    train(chosen, state, 0, lambda i, n: 0.4)
    assert heard(state) == [("validation_completed", "a", 0.4, 6), ("trial_closed", "a")]
    assert reached(state) == [6]


@pytest.mark.parametrize("again", [3, 2])
@pytest.mark.parametrize("rests", [True, False])
def test_a_length_that_was_trained_is_validated_once_more(again: int, rests: bool) -> None:
    """The method may wait for that: no answer would keep the search for ever."""
    chosen, state = custom()
    answer(chosen, state, create("a"), length("a", 3))
    ask(chosen, state)
    train(chosen, state, 0, lambda i, n: 0.5)
    if rests:
        leave(chosen, state, 0, "out_of_ops")
    answer(chosen, state, length("a", again))
    if rests:
        assert ask(chosen, state) == 0
    assert not state.trials[0].settled
    train(chosen, state, 0, lambda i, n: 0.4)
    assert heard(state) == [("validation_completed", "a", 0.4, again)]
    answer(chosen, state, length("a", 0))
    assert state.trials[0].settled


def test_an_answer_counts_once() -> None:
    """A runner that crashed sends its operations again, with the number it had answered."""
    chosen, state = custom()
    answer(chosen, state, create("a"), length("a", 3), after=1)
    before = chosen.dump(state)
    answer(chosen, state, create("a"), length("a", 3), create("b"), after=1)
    answer(chosen, state, create("c"), after=99)
    assert chosen.dump(state) == before


@pytest.mark.parametrize("again", [1, 3])
def test_a_length_that_comes_while_a_run_leaves_is_trained(again: int) -> None:
    """The run had reported, and its program waited for more in vain: the trial comes back."""
    chosen, state = custom()
    answer(chosen, state, create("a"), length("a", 1))
    ask(chosen, state)
    report(chosen, state, 0, 1, 0.5)
    answer(chosen, state, length("a", again))
    leave(chosen, state, 0, "out_of_ops")
    assert state.waiting() == [0]
    ask(chosen, state)
    leave(chosen, state, 0, "out_of_ops")  # without a report
    assert heard(state)[-2:] == [("trial_exited_early", "a", "ERRORED"), ("trial_closed", "a")]


def test_a_custom_method_hears_of_failures() -> None:
    """Each way of exiting early has its reason, and the trial is closed after it."""
    chosen, state = custom()
    names = {"error": "ERRORED", "canceled": "USER_CANCELED", "invalid_hp": "INVALID_HP"}
    for how in names:
        answer(chosen, state, create(how), length(how, 1))
        index = take(chosen, state)
        leave(chosen, state, index, how)
        exited, closed = heard(state)[-2:]
        assert exited == ("trial_exited_early", how, names[how])
        assert closed == ("trial_closed", how)


@pytest.mark.parametrize(
    ("shutdown", "verdict"),
    [({}, "completed"), ({"cancel": True}, "canceled"), ({"failure": True}, "error")],
)
def test_shutdown_lets_everybody_leave(shutdown: dict[str, bool], verdict: str) -> None:
    """Running trials are told to stop; the search ends when the last has left."""
    chosen, state = custom()
    answer(chosen, state, create("a"), length("a", 1), create("b"), length("b", 1))
    ask(chosen, state)
    answer(chosen, state, {"op": "shutdown", **shutdown}, create("late"), length("a", 9))
    assert (state.trials[0].stop, state.waiting(), state.done) == (True, [], False)
    leave(chosen, state, 0, "released")
    assert (state.done, state.verdict, state.created) == (True, verdict, 2)


def test_a_program_that_says_it_is_out_of_operations_is_believed() -> None:
    """Where nothing more can be asked of a trial it ends, though it had reported something."""
    for chosen in (
        search("random", max_trials=1, max_length=9),
        search("async_halving", max_trials=1, num_rungs=2, time_metric="batches", max_time=9),
    ):
        state = chosen.initial()
        ask(chosen, state)
        report(chosen, state, 0, 5, 0.5)
        leave(chosen, state, 0, "out_of_ops")
        assert (state.trials[0].outcome, state.done) == ("completed", True)
