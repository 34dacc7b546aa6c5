"""The pure steps of the race for a number: whatever order the processes take their turns in."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from detslurm.store import commit_race
from detslurm.store.commit_race import REMEMBERED, Patience, Seen, Turn, next_turn
from detslurm.store.waiting_room import CommitRequest

WORKERS = 5


def request(worker: int, position: int = 0) -> CommitRequest:
    return CommitRequest(position, f"{worker:016x}", [{"worker": worker}])


def name(of: CommitRequest) -> str:
    found = of.name()
    assert found is not None
    return found


def others_of(worker: int, listing: list[str]) -> list[str]:
    return [one for one in sorted(listing) if request(worker).mark not in one]


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.integers(1, 8))
def test_the_first_of_those_that_wait_lead(waits: set[int], done: set[int], leaders: int) -> None:
    """With the same facts in hand so many lead, as many as there are, and no other process."""
    seen = Seen(7, {request(worker).mark for worker in done})
    listing = [name(request(worker, 7)) for worker in waits]
    turns = {
        worker: next_turn(
            request(worker, 7),
            seen,
            others_of(worker, listing),
            shown=name(request(worker, 7)),
            leaders=leaders,
        )
        for worker in waits
    }
    still = sorted(waits - done)
    assert [worker for worker in still if turns[worker] is Turn.LEAD] == still[:leaders]
    assert all(turns[worker] is Turn.WAIT for worker in still[leaders:])
    assert all(turns[worker] is Turn.DONE for worker in waits & done)


@given(st.integers(0, 2 * REMEMBERED), st.integers(0, 2 * REMEMBERED), st.booleans())
def test_a_request_is_asked_again_before_its_mark_is_forgotten(
    asked: int, position: int, done: bool
) -> None:
    """A mark in the log is done; else the request stands as long as marks are remembered."""
    own = request(1, asked)
    turn = next_turn(own, Seen(position, {own.mark} if done else set()))
    assert (turn is Turn.DONE) == done
    assert (turn is Turn.ASK_AGAIN) == (not done and position - asked >= REMEMBERED)


def test_an_entry_that_is_not_shown_waits_for_none() -> None:
    """Its process commits it alone, after a pause of its own."""
    names = [name(request(worker)) for worker in range(9)]
    assert next_turn(request(9), Seen(0, set()), names, leaders=2) is Turn.LEAD
    patience = Patience(0.1)
    assert patience.seconds(Turn.LEAD, is_shown=False, chance=1.0) == 0.1
    assert patience.seconds(Turn.LEAD, is_shown=True, chance=1.0) == 0.0
    for _ in range(40):
        patience = patience.longer()
    assert patience.pause == commit_race.LONGEST, "a pause has an end"
    assert patience.leaders >= 1000, "in the end each of a thousand leads"


class Process:
    """One that commits a request by the pure steps, over a log in memory."""

    def __init__(self, worker: int) -> None:
        self.own, self.patience = request(worker), Patience(1.0)
        self.position, self.marks = 0, list[set[str]]()
        self.is_done = False

    def seen(self) -> Seen:
        return Seen(self.position, set().union(*self.marks[-commit_race.REMEMBERED :]))

    def read(self, log: list[list[CommitRequest]], found: list[str]) -> None:
        """Take in all facts, with the rule by which copies of a request don't count."""
        for fact in log[self.position :]:
            number = self.position + 1
            known = self.seen().marks
            new = [r for r in fact if r.mark not in known]
            kept = [r for r in new if number <= r.position + commit_race.REMEMBERED]
            self.position = number
            self.marks.append({r.mark for r in kept})
            found += [r.mark for r in kept]

    def step(self, log: list[list[CommitRequest]], room: dict[str, str], names: list[str]) -> None:
        """A round: the log and what it lists may have changed since."""
        turn = next_turn(
            self.own, self.seen(), names, shown=room.get(self.own.mark, ""),
            leaders=self.patience.leaders,
        )  # fmt: skip
        before = self.position
        if turn is Turn.WAIT:
            self.read(log, [])
        now = next_turn(self.own, self.seen())
        if now is Turn.ASK_AGAIN or self.own.mark not in room:
            self.own = self.own._replace(position=self.position)
            room[self.own.mark] = name(self.own)
        elif turn is Turn.LEAD:
            if before == len(log):  # else its link fails: another one has the number
                along = self.seen().taken_along(others_of(int(self.own.mark, 16), names))
                log.append([self.own, *along])
            self.read(log, [])
        self.patience = self.patience.longer()
        self.is_done = next_turn(self.own, self.seen()) is Turn.DONE


rounds = st.lists(st.tuples(st.integers(0, WORKERS - 1), st.integers(0, 30)), max_size=120)


@given(rounds, st.integers(1, 6))
def test_each_request_counts_once_in_any_order_of_turns(
    turns: list[tuple[int, int]], remembered: int
) -> None:
    """Listings may be old, processes may stop for ever in between, and marks are soon forgotten."""
    log, room = list[list[CommitRequest]](), dict[str, str]()
    listings = [list[str]()]
    processes = [Process(worker) for worker in range(WORKERS)]

    def step(process: Process, age: int) -> None:
        if not process.is_done:
            old = listings[max(len(listings) - 1 - age, 0)]
            process.step(log, room, others_of(int(process.own.mark, 16), old))
            listings.append([*room.values()])

    with mock.patch.object(commit_race, "REMEMBERED", remembered):
        for worker, age in turns:
            step(processes[worker], age)
        for process in processes * 40:
            step(process, 0)
        assert all(process.is_done for process in processes), "one waits for ever"
        found: list[Any] = []
        Process(WORKERS).read(log, found)
    assert sorted(found) == sorted(request(worker).mark for worker in range(WORKERS))
