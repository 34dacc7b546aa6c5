"""Whatever two processes can both want, exactly one gets."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from functools import partial
from itertools import islice
from unittest import mock

import pytest

from detslurm.store import (
    NotFound,
    RunTaken,
    Store,
    TrialDir,
    TrialEnded,
    fold_trial,
)
from detslurm.store.errors import StoreFault
from detslurm.store.facts import REFUSED
from detslurm.store.frame import frame
from tests.store import scenes
from tests.store.faults import race, races, refusing
from tests.store.listing import rows_of


def _claim(trial: TrialDir, run: int, who: int) -> bool:
    return scenes.claim(trial, run, seed=who)


def _end(trial: TrialDir, run: int, who: int) -> bool:
    return trial.write_end(run, {"exit_code": who})


def test_forty_writers_get_distinct_ids(store: Store) -> None:
    """Forty processes submit at once: experiments and trials are all distinct."""

    def submit(_: int) -> list[int]:
        made = store.new_experiment()
        return [made.id, store.reserve_trials(made.id, 3)]

    made = race(40, submit)
    assert sorted(number for number, _ in made) == list(range(1, 41))
    assert sorted(first for _, first in made) == list(range(1, 121, 3))
    for number, first in made:
        assert store.find_trial(first + 2).experiment_id == number


def test_blocks_of_trials_never_overlap(store: Store) -> None:
    """Racing reservations of different sizes cover the ids without overlap."""
    sizes = [3, 5]
    firsts = race(2, lambda n: [store.reserve_trials(n + 1, sizes[n]) for _ in range(20)])
    taken = [f + i for n in (0, 1) for f in firsts[n] for i in range(sizes[n])]
    assert sorted(taken) == list(range(1, 161))


def test_facts_are_numbered_without_gaps(store: Store) -> None:
    """All facts of racing writers are there, each under its own number."""
    made = scenes.experiment(store)
    race(2, lambda n: [made.append({"type": "note", "who": n, "i": i}) for i in range(20)])
    notes = [fact for fact in made.facts() if fact["type"] == "note"]
    assert [fact["n"] for fact in notes] == list(range(2, 42))
    assert Counter(fact["who"] for fact in notes) == {0: 20, 1: 20}
    for who in (0, 1):
        assert [fact["i"] for fact in notes if fact["who"] == who] == list(range(20))


def test_a_long_log_is_read_ahead_of_its_end(store: Store) -> None:
    """Several facts at a time, and those that this user may not read in their places."""
    made, count = scenes.experiment(store), 300
    with mock.patch.object(os, "fsync"):
        for number in range(2, count + 1):
            made.log.put(number, {"type": "note", "i": number})
    for after in (0, 1, 200, count - 1, count):
        assert [f["n"] for f in made.facts(after)] == list(range(after + 1, count + 1))
    assert [fact["n"] for fact in islice(made.facts(), 150)] == list(range(1, 151))
    real = os.open

    def refuses(name: str, *more: int) -> int:
        if str(name).endswith("000222.json"):
            raise PermissionError(errno.EACCES, "no", name)
        return real(name, *more)

    with mock.patch.object(os, "open", refuses):
        kinds = [fact["type"] for fact in made.log.facts(1, skip_refused=True)]
        assert kinds == ["note"] * 220 + [REFUSED] + ["note"] * (count - 222)
        with pytest.raises(StoreFault):
            list(made.facts())


def test_a_run_is_claimed_once(store: Store) -> None:
    """Of racing runners one gets each run."""
    trial = scenes.trial(store)
    won = races(3, [partial(_claim, trial, number) for number in range(1, 15)])
    for number, each in enumerate(won, 1):
        assert Counter(each)[True] == 1
        start = trial.start(number)
        assert start is not None
        assert start.seed == each.index(True)


def test_a_run_has_one_end_record(store: Store) -> None:
    """Of racing end records one stands, and its writer knows."""
    trial = scenes.trial(store)
    for number in range(1, 15):
        scenes.claim(trial, number)
    won = races(2, [partial(_end, trial, number) for number in range(1, 15)])
    for number, each in enumerate(won, 1):
        assert Counter(each)[True] == 1
        end = trial.end(number)
        assert end is not None
        assert end.exit_code == each.index(True)


def test_a_run_with_an_older_token_comes_too_late(store: Store) -> None:
    """A worker whose trial was given to another meanwhile fences nobody; the other may begin after
    it, too."""
    trial = scenes.trial(store)
    assert trial.open_run({"fencing_token": 2}).run == 1
    with pytest.raises(RunTaken, match="given to another worker"):
        trial.open_run({"fencing_token": 1})
    assert [run.end for run in trial.runs()] == [None]
    assert trial.open_run({"fencing_token": 3}).run == 2


def test_the_higher_fencing_token_wins_a_race(store: Store) -> None:
    """In whatever order: the run that stays open has the token that the search gave away last."""

    def open_run(trial: TrialDir, fencing_token: int) -> None:
        with contextlib.suppress(RunTaken):
            trial.open_run({"fencing_token": fencing_token})

    trials = [scenes.trial(store) for _ in range(10)]
    races(4, [partial(open_run, trial) for trial in trials])
    for trial in trials:
        runs = trial.runs()
        tokens = [run.start.fencing_token or 0 for run in runs]
        assert tokens == sorted(set(tokens))
        assert runs[-1].start.fencing_token == 3
        assert [run.end is None for run in runs] == [False] * (len(runs) - 1) + [True]


def test_two_runners_that_open_a_run_at_once_do_not_both_work(store: Store) -> None:
    """The loser of the race for a run is told, or fences the winner: one run stays open."""
    trial = scenes.trial(store)

    def open_run(who: int) -> int:
        try:
            return int(trial.open_run({"job": {"job_id": str(who)}}).run)
        except RunTaken:
            return 0

    won = race(4, open_run)
    runs = trial.runs()
    assert sorted(number for number in won if number) == [run.number for run in runs]
    assert [run.end is None for run in runs] == [False] * (len(runs) - 1) + [True]


def test_a_lost_run_is_fenced_before_the_next_one_begins(store: Store) -> None:
    """A zombie's end record comes too late, and it can find out that it is one."""
    trial = scenes.trial(store)
    scenes.run(trial, [scenes.metrics(10, loss=0.5)])
    assert not trial.superseded(1)
    trial.open_run({"job": {"job_id": "2"}})
    assert trial.superseded(1)
    assert not trial.superseded(2)
    assert not trial.write_end(1, {"outcome": "completed"})
    assert fold_trial(trial).state == "RUNNING"
    lost = fold_trial(trial).runs[0]
    assert lost.outcome == "lost"
    assert lost.reason == "it ended without notice (its node or its runner died); run 2 took over"


def test_a_trial_that_has_ended_is_not_run_again(store: Store) -> None:
    """After a terminal end record no run can be opened; after any other one it can."""
    trial = scenes.trial(store)
    scenes.run(trial, [], "preempted")
    scenes.run(trial, [], "error")
    with pytest.raises(TrialEnded, match="error"):
        trial.open_run({})
    assert len(trial.runs()) == 2


def test_an_end_record_that_comes_during_the_fencing_stands(store: Store) -> None:
    """Where the old run writes its end record just before the fence, the trial has ended."""
    trial = scenes.trial(store)
    scenes.run(trial, [])
    runs = trial.runs()
    trial.write_end(1, {"outcome": "completed"})
    assert trial.fence(1, {}).outcome == "completed"
    with pytest.raises(TrialEnded):
        trial._close(runs[-1], {})


def test_unknown_ids_are_named(store: Store) -> None:
    """What does not exist is NotFound with the store's path."""
    with pytest.raises(NotFound, match="experiment 7"):
        store.experiment(7)
    with pytest.raises(NotFound, match="trial 7"):
        store.find_trial(7)
    scenes.experiment(store, 2)
    with pytest.raises(NotFound, match="trial 3"):
        store.find_trial(3)
    assert store.find_trial(2).experiment_id == 1


@pytest.mark.parametrize("harm", ["damaged", "incomplete", "refused"])
def test_a_block_that_cant_be_read_never_collides(store: Store, harm: str) -> None:
    """New ids lie beyond all that the block may have given; everything else goes on."""
    scenes.finished(store)
    store.reserve_trials(1, 5)
    block = store.ledger.log.name(2)
    sound = block.read_bytes()
    with contextlib.ExitStack() as stack:
        if harm == "damaged":
            block.write_bytes(b"00000000 {}\n")
        elif harm == "incomplete":
            block.write_bytes(frame({"v": 1, "type": "trials", "id": 1, "trials": 5}))
        else:
            stack.enter_context(refusing(block))
        assert store.reserve_trials(1, 1) > 1_000_000
        assert [row.state for row in rows_of(store)] == ["COMPLETED"]
        assert str(block) in store.catalog().problems[0]
        assert store.find_trial(1).experiment_id == 1
    block.write_bytes(sound)
    if harm == "refused":  # nothing that was left out meanwhile stays so
        assert store.find_trial(6).experiment_id == 1
