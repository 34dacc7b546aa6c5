"""Which checkpoints a policy keeps."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.store import CheckpointView, ValidationView
from detslurm.store.gc_policy import Candidate, GCPolicy, beyond, candidates
from detslurm.store.objectives import ObjectiveRecord, SeveralObjectives

NOTHING = GCPolicy(save_experiment_best=0, save_trial_best=0, save_trial_latest=0)

EXAMPLE = [
    Candidate("1", trial=1, run=1, steps=1),
    Candidate("2", trial=1, run=1, steps=2),
    Candidate("3", trial=1, run=1, steps=3, value=0.6, reported=3),
    Candidate("4", trial=1, run=1, steps=4, value=0.5, reported=4),
    Candidate("5", trial=1, run=1, steps=5, value=0.4, reported=5),
    Candidate("6", trial=2, run=1, steps=1),
    Candidate("7", trial=2, run=1, steps=2, value=0.2, reported=2),
    Candidate("8", trial=2, run=1, steps=3, value=0.3, reported=3),
    Candidate("9", trial=2, run=1, steps=4),
    Candidate("10", trial=2, run=1, steps=5),
]
"""Two trials: what each checkpoint is called, and the loss of the validation at its steps."""


def kept(
    policy: GCPolicy, checkpoints: list[Candidate] = EXAMPLE, *, smaller: bool = True
) -> set[str]:
    """What is left of the checkpoints."""
    gone = beyond(policy, checkpoints, smaller_is_better=smaller)
    return {one.uuid for one in checkpoints} - {one.uuid for one in gone}


@pytest.mark.parametrize(
    ("numbers", "stay"),
    [
        ((0, 0, 0), ""),
        ((2, 0, 0), "8 7"),
        ((5, 0, 0), "8 7 5 4 3"),
        ((9, 0, 0), "8 7 5 4 3"),
        ((0, 1, 0), "7 5"),
        ((0, 3, 0), "8 7 5 4 3"),
        ((0, 9, 0), "8 7 5 4 3"),
        ((0, 0, 1), "10 5"),
        ((0, 0, 3), "10 9 8 5 4 3"),
        ((2, 1, 0), "8 7 5"),
        ((2, 0, 1), "10 8 7 5"),
        ((0, 1, 1), "10 7 5"),
        ((2, 1, 1), "10 8 7 5"),
    ],
)
def test_the_documented_table(numbers: tuple[int, int, int], stay: str) -> None:
    """Each policy of the documentation keeps what the documentation says."""
    names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    policy = GCPolicy(**dict(zip(names, numbers, strict=True)))
    assert kept(policy) == set(stay.split())


def test_a_larger_metric_may_be_the_better_one() -> None:
    """`smaller_is_better: false` turns both best ranks around, and not the latest."""
    policy = GCPolicy(save_experiment_best=1, save_trial_best=1, save_trial_latest=0)
    assert kept(policy, smaller=False) == {"3", "8"}


def test_of_equal_metrics_the_earlier_validation_is_the_better_one() -> None:
    """In a trial, and between trials, whatever order the trials have."""
    same = [
        Candidate("a", trial=1, run=1, steps=1, value=0.5, reported=30),
        Candidate("b", trial=1, run=1, steps=2, value=0.5, reported=40),
        Candidate("c", trial=2, run=1, steps=1, value=0.5, reported=10),
        Candidate("d", trial=2, run=1, steps=2, value=0.5, reported=20),
    ]
    for smaller in (True, False):
        assert kept(GCPolicy(save_trial_best=1, save_trial_latest=0), same, smaller=smaller) == {
            "a",
            "c",
        }
        policy = GCPolicy(save_experiment_best=2, save_trial_best=0, save_trial_latest=0)
        assert kept(policy, same, smaller=smaller) == {"c", "d"}


def test_a_metric_that_is_not_a_number_is_worse_than_all_numbers() -> None:
    """It still goes before nothing; infinities go before it, and after all other numbers."""
    odd = [
        Candidate("nan", trial=1, run=1, steps=1, value=math.nan, reported=1),
        Candidate("worst", trial=1, run=1, steps=2, value=math.inf, reported=2),
        Candidate("none", trial=1, run=1, steps=3),
    ]
    one = GCPolicy(save_trial_best=1, save_trial_latest=0)
    two = GCPolicy(save_trial_best=2, save_trial_latest=0)
    assert kept(one, odd) == {"worst"}
    assert kept(two, odd) == {"worst", "nan"}
    odd[1] = odd[1]._replace(value=-math.inf)
    assert kept(one, odd, smaller=False) == {"worst"}
    odd.append(Candidate("finite", trial=1, run=1, steps=4, value=9.0, reported=4))
    assert kept(one, odd, smaller=True) == {"finite"}


def test_the_latest_is_that_of_the_newest_run() -> None:
    """A run that began again at an earlier step goes on from its own checkpoints."""
    again = [
        Candidate("100", trial=1, run=1, steps=100),
        Candidate("50", trial=1, run=2, steps=50),
        Candidate("60", trial=1, run=2, steps=60),
    ]
    policy = GCPolicy(save_trial_best=0, save_trial_latest=1)
    assert kept(policy, again) == {"60"}
    assert kept(policy, [again[2], again[1], again[0]]) == {"60"}
    same = [Candidate("first", 1, 1, 10), Candidate("second", 1, 1, 10)]
    assert kept(policy, same) == {"second"}


def saved(uuid: str, steps: int, **more: Any) -> CheckpointView:
    return CheckpointView(uuid=uuid, trial=1, run=1, steps=steps, **more)


def validated(steps: int, value: float | None) -> ValidationView:
    return ValidationView(steps=steps, value=value, metrics={}, time=float(steps))


def test_only_a_validation_at_exactly_its_steps_ranks_a_checkpoint() -> None:
    """One step before or after is another model; a report without the metric ranks nothing."""
    found = candidates(
        [saved("a", 10), saved("b", 20), saved("c", 30), saved("d", 40)],
        [validated(9, 0.1), validated(20, 0.9), validated(21, 0.1), validated(30, None)],
    )
    assert [one.value for one in found] == [None, 0.9, None, None]
    assert kept(GCPolicy(save_trial_best=4, save_trial_latest=0), found) == {"b"}


def test_only_complete_checkpoints_count() -> None:
    """Neither what was deleted nor what was deleted in part takes a place, or is taken."""
    found = candidates(
        [saved("a", 1), saved("b", 2, state="DELETED"), saved("c", 3, state="PARTIALLY_DELETED")],
        [validated(2, 0.1), validated(3, 0.2)],
    )
    assert [one.uuid for one in found] == ["a"]


def test_the_policy_is_what_was_set_last() -> None:
    """What was submitted counts until something else is set, and defaults below that."""
    config = {"checkpoint_storage": {"type": "shared_fs", "save_trial_best": 4}}
    assert GCPolicy.of(config, {}) == GCPolicy(save_trial_best=4)
    later = {"gc_policy": {"save_trial_latest": 0, "save_trial_best": 0}}
    assert GCPolicy.of(config, later) == NOTHING
    assert GCPolicy.of({"checkpoint_storage": {"save_trial_best": None}}, {}) == GCPolicy()


@pytest.mark.parametrize("seed", range(20))
def test_collecting_while_they_are_saved_leaves_the_same_as_collecting_at_the_end(
    seed: int,
) -> None:
    """Whatever the policy, the metrics and the moments of collection."""
    chance = random.Random(seed)
    policy = GCPolicy(
        save_experiment_best=chance.randrange(4),
        save_trial_best=chance.randrange(3),
        save_trial_latest=chance.randrange(3),
    )
    clock = itertools.count()
    steps = [0, 0, 0]
    everything: list[Candidate] = []
    now: list[Candidate] = []
    for number in range(60):
        trial = chance.randrange(3)
        steps[trial] += 1
        value = chance.choice([None, math.nan, *(n / 8 for n in range(8))])
        new = Candidate(str(number), trial, 1, steps[trial], value, float(next(clock)))
        everything.append(new)
        now.append(new)
        if chance.random() < 0.4:
            gone = beyond(policy, now, smaller_is_better=True)
            now = [one for one in now if one not in gone]
    left = {one.uuid for one in now}
    assert kept(policy, now) == kept(policy, everything) <= left


SEVERAL = SeveralObjectives((ObjectiveRecord("a"), ObjectiveRecord("b", False)), {"c": "< 3"})
VALUES = st.sampled_from([0, 1, 2, 3, math.nan, None, math.inf])
RESULTS = st.fixed_dictionaries({}, optional=dict.fromkeys("abc", VALUES))


@settings(deadline=None)
@given(
    results=st.lists(st.tuples(st.integers(1, 3), RESULTS), max_size=12),
    numbers=st.tuples(*[st.integers(0, 2)] * 3),
)
def test_a_member_of_the_front_is_never_deleted(
    results: list[tuple[int, dict[str, Any]]], numbers: tuple[int, int, int]
) -> None:
    """Also where checkpoints come one after the other, and are collected trial by trial: at the
    end the front of all that ever were is there."""
    policy = GCPolicy(**dict(zip(GCPolicy.__struct_fields__, numbers, strict=True)))
    every = [
        Candidate(str(n), trial, 1, n, reported=n, metrics=metrics)
        for n, (trial, metrics) in enumerate(results)
    ]
    left: list[Candidate] = []
    for one in every:
        left.append(one)
        own = [other for other in left if other.trial == one.trial]
        for some in (own, left):
            gone = beyond(policy, some, smaller_is_better=True, objectives=SEVERAL)
            left = [other for other in left if other not in gone]
    assert {one.uuid for one in _front(every)} <= {one.uuid for one in left}
    assert len(beyond(policy, left, smaller_is_better=True, objectives=SEVERAL)) == 0


def _front(every: list[Candidate]) -> list[Candidate]:
    """By brute force: those that keep the constraint and that none of these beats."""

    def finite(one: Candidate) -> bool:
        values = [one.metrics.get(name) for name in "abc"]
        return all(value is not None and math.isfinite(value) for value in values)

    def beats(one: Candidate, other: Candidate) -> bool:
        pairs = [(one.metrics["a"], other.metrics["a"]), (-one.metrics["b"], -other.metrics["b"])]
        return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)

    good = [one for one in every if finite(one) and one.metrics["c"] < 3]
    return [one for one in good if not any(beats(other, one) for other in good)]
