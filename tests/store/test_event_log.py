"""Whoever folds the log of events, at whatever moment, finds the same decisions."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.crowd import search
from benchmarks.site.decisions import FileServer, crowd
from detslurm.searcher import Search
from detslurm.searcher import State as SearchState
from detslurm.store import EventLog, StoreError, fs
from detslurm.store.errors import RecordMissing
from detslurm.store.event_log import PACK_OF, SNAPSHOT_EVERY, snapshot_interval
from detslurm.store.facts import FactLog
from detslurm.store.frame import frame
from detslurm.store.waiting_room import CommitRequest, WaitingRoom
from tests.store.faults import BEFORE, deaths, failing, failing_at, killed_at, race

State = dict[str, Any]


class Tickets:
    """Gives each worker that asks the next number, and remembers every event in its order."""

    def initial(self) -> State:
        return {"given": {}, "seen": []}

    def apply(self, state: State, events: list[dict[str, Any]]) -> None:
        for event in events:
            state["seen"].append(event.get("id"))
            state["given"].setdefault(event.get("worker"), len(state["given"]))

    def dump(self, state: State) -> bytes:
        return json.dumps(state).encode()

    def load(self, data: bytes) -> State:
        state: State = json.loads(data)
        return state

    def may_come_late(self, state: State, events: list[dict[str, Any]]) -> bool:
        return not any(event.get("alone") for event in events)


@pytest.fixture
def folder(place: Path) -> Path:
    path = place / "search"
    path.mkdir()
    return path


def opened(folder: Path) -> EventLog[State]:
    return EventLog(folder, Tickets())


def ask(log: EventLog[State], worker: str, number: int = 0) -> int:
    """One worker's request; the ticket that it got."""
    event = {"e": "ask", "worker": worker, "id": f"{worker}.{number}"}
    return int(log.commit([event])["given"][worker])


def replayed(folder: Path) -> State:
    """The state by the facts alone."""
    bare = folder.parent / "bare"
    shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("state.bin"))
    try:
        return opened(bare).catch_up()
    finally:
        shutil.rmtree(bare)


def test_a_commit_tells_what_was_decided(folder: Path) -> None:
    """The state after a commit holds what came before it, and another process sees the same."""
    one, other = opened(folder), opened(folder)
    assert [ask(one, "a"), ask(other, "b"), ask(one, "c")] == [0, 1, 2]
    assert one.position == 3
    assert other.catch_up() == one.state == opened(folder).catch_up()


def test_several_events_are_one_fact(folder: Path) -> None:
    """What is committed together is seen together."""
    log = opened(folder)
    log.commit([{"worker": "a", "id": 1}, {"worker": "b", "id": 2}])
    assert log.position == 1
    assert opened(folder).catch_up()["seen"] == [1, 2]


def test_racing_workers_lose_and_double_nothing(folder: Path) -> None:
    """Of 60 processes that ask at once each gets a ticket of its own, and all events are there."""
    asks = 8

    def work(who: int) -> list[int]:
        log = opened(folder)
        return [ask(log, f"{who}.{n}") for n in range(asks)]

    tickets = race(60, work)
    assert sorted(t for each in tickets for t in each) == list(range(60 * asks))
    state = opened(folder).catch_up()
    assert len(state["seen"]) == len(set(state["seen"])) == 60 * asks
    assert [[state["given"][f"{who}.{n}"] for n in range(asks)] for who in range(60)] == tickets
    assert replayed(folder) == state


@pytest.mark.parametrize("code", [errno.EIO, errno.EEXIST, errno.ESTALE])
def test_a_link_whose_reply_got_lost_counts_once(folder: Path, code: int) -> None:
    """Whatever error the lost reply turned into, the events are folded once, by everybody."""
    log = opened(folder)
    ask(log, "a")
    with failing("link", code, done=True):
        assert ask(log, "b") == 1
    assert ask(log, "c") == 2
    assert log.state["seen"] == ["a.0", "b.0", "c.0"]
    assert opened(folder).catch_up() == log.state == replayed(folder)


def test_a_reply_lost_behind_others_counts_once(folder: Path) -> None:
    """As above, for a process that has lost the race for a number before."""
    late, busy = opened(folder), opened(folder)
    for number in range(30):
        ask(busy, f"w{number}")
    with failing("link", errno.EEXIST, done=True, skip=1):
        assert ask(late, "late") == 30
    assert len(list(folder.glob("*.json"))) == 31
    for number in range(200):
        ask(busy, f"x{number}")
    assert late.catch_up()["seen"].count("late.0") == 1
    assert late.state == busy.state == replayed(folder)


def test_an_error_of_the_link_is_the_stores_own(folder: Path) -> None:
    """What could not be linked is no fact, and leaves no litter."""
    log = opened(folder)
    with failing("link", errno.EIO), pytest.raises(StoreError):
        ask(log, "a")
    assert list(folder.iterdir()) == []
    assert ask(log, "a") == 0


def test_a_kill_at_any_call_leaves_the_event_whole_or_absent(place: Path) -> None:
    """Wherever the committer dies, also while it writes the cache, the next one goes on."""
    template = place / "template"
    template.mkdir()
    log = opened(template)
    for number in range(SNAPSHOT_EVERY - 1):
        ask(log, f"w{number}")
    assert not (template / "state.bin").exists()

    def copied(name: str) -> tuple[Path, Callable[[], int]]:
        folder = place / name
        shutil.copytree(template, folder)
        ready = opened(folder)
        ready.catch_up()
        return folder, partial(ask, ready, "mine")

    whole, asks = copied("whole")
    moments = deaths(asks, whole)
    for call, moment in moments:
        folder, asks = copied(f"kill-{call}-{moment}")
        killed = killed_at(asks, call, moment)
        assert killed == ((call, moment) != moments[-1])
        state = opened(folder).catch_up()
        assert len(state["seen"]) in (SNAPSHOT_EVERY - 1, SNAPSHOT_EVERY)
        assert state == replayed(folder)
        assert ask(opened(folder), "mine") == SNAPSHOT_EVERY - 1
        assert killed or (folder / "state.bin").exists()


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT, errno.ESTALE])
def test_an_error_at_any_call_can_be_retried(place: Path, code: int) -> None:
    """Whichever call fails, the caller hears of it from the store or not at all."""
    for call in range(1, 100):
        folder = place / f"fail-{call}"
        folder.mkdir()
        other, log = opened(folder), opened(folder)
        ask(other, "other")
        with failing_at(call, code) as happened:
            try:
                ask(log, "mine")
            except StoreError:
                pass
        assert ask(log, "mine") == 1
        assert replayed(folder) == log.state
        if not happened():
            return
    raise AssertionError("the commit never came to an end")


def test_opening_reads_the_cache_and_a_short_tail(folder: Path) -> None:
    """A log of a thousand facts opens with one read and at most 256 facts."""
    log = opened(folder)
    for number in range(1000):
        ask(log, f"w{number}")
    with failing("open", errno.EIO, times=0) as opens:
        again = opened(folder)
        assert again.catch_up() == log.state
    assert again.position == 1000
    assert opens.call_count <= SNAPSHOT_EVERY + 2
    assert replayed(folder) == log.state


def test_a_long_log_writes_its_cache_seldom(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state is long, too: as many bytes are written for a fact as in a short log."""
    behind = 32 * SNAPSHOT_EVERY
    facts = FactLog(folder)
    for number in range(1, behind + 1):
        events = [{"e": "ask", "worker": f"w{number}", "id": f"w{number}.0"}]
        fact = frame({"v": 1, "id": f"{number:016x}", "events": events})
        Path(facts.path_text(number)).write_bytes(fact)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    log = opened(folder)
    log.catch_up()
    assert opened(folder).position == behind, "who reads it all leaves the cache"
    for number in range(SNAPSHOT_EVERY):
        assert ask(log, f"x{number}") == behind + number
    again = opened(folder)
    assert (again.position, snapshot_interval(behind)) == (behind, 2 * SNAPSHOT_EVERY)
    assert again.catch_up() == log.state


def test_the_interval_of_the_cache_grows_with_the_log() -> None:
    """All versions together have some 33 times the last one's bytes, however many facts there are,
    and the facts after the last one are a small part of all."""
    due = [n for n in range(1, 300_000) if n % snapshot_interval(n) == 0]
    assert due[:16] == [SNAPSHOT_EVERY * n for n in range(1, 17)]
    written = 0
    for before, after in itertools.pairwise([0, *due]):
        written += after
        assert after - before <= max(SNAPSHOT_EVERY, after // 16)
        assert written <= 33 * after


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "foreign", "unloadable"])
def test_a_cache_that_is_broken_is_built_anew(folder: Path, damage: str) -> None:
    """It is only a cache: whatever happens to it, the facts tell the same."""
    log = opened(folder)
    for number in range(SNAPSHOT_EVERY):
        ask(log, f"w{number}")
    cache = folder / "state.bin"
    whole = cache.read_bytes()
    flipped = bytes([whole[200] ^ 1])
    fold = Tickets()
    if damage == "unloadable":
        fold.load = lambda data: json.loads(b"{")  # type: ignore[method-assign]
    else:
        cache.write_bytes(
            {
                "torn": whole[: len(whole) // 2],
                "flipped": whole[:200] + flipped + whole[201:],
                "empty": b"",
                "foreign": b"{}\n",
            }[damage]
        )
    again = EventLog(folder, fold)
    assert again.position == 0
    assert again.catch_up() == log.state


def test_an_event_that_no_cache_can_hold(tmp_path: Path) -> None:
    """An integer beyond 64 bits, say from `random.getrandbits(128)`: the facts hold it."""
    config = {"searcher": {"name": "custom", "metric": "loss"}}

    def search_log() -> EventLog[SearchState]:
        return EventLog(tmp_path, Search(config))

    log = search_log()
    for number in range(2 * SNAPSHOT_EVERY):
        request = f"00000000-0000-4000-8000-{number:012}"
        create = {"op": "create", "request_id": request, "hparams": {"seed": 2**64}}
        assert log.state.dialogue is not None
        log.commit([{"e": "operations", "after": log.state.dialogue.last, "ops": [create]}])
    state = search_log().catch_up()
    assert [trial.hparams for trial in state.trials] == [{"seed": 2**64}] * (2 * SNAPSHOT_EVERY)


def test_an_old_cache_costs_time_only(folder: Path) -> None:
    """A cache that was overwritten by a slow writer's older one is as good; a reader renews it."""
    log = opened(folder)
    for number in range(SNAPSHOT_EVERY):
        ask(log, f"w{number}")
    old = (folder / "state.bin").read_bytes()
    for number in range(3 * SNAPSHOT_EVERY):
        ask(log, f"x{number}")
    (folder / "state.bin").write_bytes(old)
    assert opened(folder).catch_up() == log.state
    assert opened(folder).position > 3 * SNAPSHOT_EVERY, "the cache was not renewed"


def test_a_worker_does_not_fill_what_was_lost_while_it_worked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read up to the lost fact: a commit gives the number to nothing, and says so."""
    monkeypatch.setattr("detslurm.store.event_log._SAFE", -1.0)
    mine, other = opened(folder), opened(folder)
    ask(mine, "mine")
    ask(other, "other")
    ask(other, "other", 1)
    lost = mine._log.name(2)
    lost.unlink()
    with pytest.raises(RecordMissing):
        ask(mine, "mine", 1)
    assert not lost.exists()


def test_a_corrupt_fact_is_passed_over_by_everybody(folder: Path) -> None:
    """A damaged fact costs its own events and no others."""
    log = opened(folder)
    for worker in "abc":
        ask(log, worker)
    (folder / "000002.json").write_bytes(b"00000000 {}\n")
    again = opened(folder)
    assert again.catch_up()["seen"] == ["a.0", "c.0"]
    assert ask(again, "d") == 2
    assert opened(folder).catch_up() == again.state


def test_a_decision_costs_few_calls_and_one_sync(folder: Path) -> None:
    """Undisturbed: eight calls that reach the file server at most, one of them an fsync."""
    log = opened(folder)
    ask(log, "a")
    counts = {}
    for name in ("open", "fsync", "link", "unlink", "write", "close", "stat", "rename"):
        with failing(name, errno.EIO, times=0) as calls:
            ask(log, name)
        counts[name] = calls.call_count
    assert counts["fsync"] == 1
    assert sum(counts.values()) <= 8, counts


def test_who_is_far_behind_reads_packs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen facts are one file for a latecomer, and the state is the same without them."""
    late, busy = opened(folder), opened(folder)
    for number in range(10 * PACK_OF + 3):
        ask(busy, f"w{number}")
    opens: list[Any] = []
    read = fs.read_file

    def counted(path: fs.AnyPath, *, expected: bool = False) -> bytes | None:
        opens.append(path)
        return read(path, expected=expected)

    monkeypatch.setattr(fs, "read_file", counted)
    assert late.catch_up() == busy.state
    assert len(opens) <= 10 + 3 + 2
    for pack in folder.glob("*.pack"):
        pack.write_bytes(b"torn")
    assert opened(folder).catch_up() == busy.state
    for pack in folder.glob("*.pack"):
        pack.unlink()
    assert opened(folder).catch_up() == busy.state


# -- the room where the losers of a race wait ------------------------------------------------------


def waiting(folder: Path, log: EventLog[State], worker: str) -> Path:
    """What a process shows that waits, and then dies."""
    request = CommitRequest.new(log.position, [{"e": "ask", "worker": worker, "id": f"{worker}.0"}])
    (folder / "waiting").mkdir(exist_ok=True)
    name = request.name()
    assert name is not None
    path = folder / "waiting" / name
    path.touch()
    return path


def test_a_winner_commits_what_others_left(folder: Path) -> None:
    """One fact, one fsync: its own events first, then those that wait, first come first served."""
    log, other = opened(folder), opened(folder)
    ask(other, "a")
    for worker in "bc":
        waiting(folder, opened(folder), worker)
    ask(other, "d")
    assert ask(log, "e") == 2
    assert log.position == 3
    assert sorted(log.state["seen"][3:]) == ["b.0", "c.0"]
    assert other.catch_up() == log.state == replayed(folder)


def test_what_another_committed_is_not_committed_again(folder: Path) -> None:
    """Who finds its events in the log is done, without a link of its own."""
    late, busy = opened(folder), opened(folder)
    ask(busy, "a")
    others = WaitingRoom.others

    def overtaken(*args: Any) -> Any:
        busy._crowded = True
        with mock.patch.object(WaitingRoom, "others", others):
            ask(busy, "b")
        return others(*args)

    with mock.patch.object(WaitingRoom, "others", overtaken), failing("fsync", 0, times=0) as syncs:
        assert ask(late, "late") == 2
    assert syncs.call_count == 2  # of its first try, and of the other's commit
    assert late.state == busy.catch_up() == replayed(folder)
    assert list((folder / "waiting").iterdir()) == []


def test_what_a_dead_process_left_counts_once(folder: Path) -> None:
    """However long its file stays: after some hundred facts nobody looks at it any more."""
    log, other = opened(folder), opened(folder)
    left = waiting(folder, log, "dead")
    for number in range(2 * SNAPSHOT_EVERY + 2):
        other._crowded = number % 7 == 0
        ask(other, f"w{number}")
    assert left.exists()
    for number in range(SNAPSHOT_EVERY):
        other._crowded = True
        ask(other, f"x{number}")
    assert other.state["seen"].count("dead.0") == 1
    assert not left.exists(), "litter"
    assert opened(folder).catch_up() == other.state == replayed(folder)


def test_events_too_long_for_a_name_are_committed_all_the_same(folder: Path) -> None:
    """They are not shown; nor is what a file system has no place or no name for."""
    late, busy = opened(folder), opened(folder)
    long = os.urandom(300).hex()
    ask(busy, "a")
    assert ask(late, long) == 1
    ask(busy, "b")
    with failing("open", errno.ENAMETOOLONG, skip=1, times=1):
        assert ask(late, "late") == 3
    assert late.state == busy.catch_up() == replayed(folder)


def test_a_kill_at_any_call_among_others_loses_and_doubles_nothing(place: Path) -> None:
    """Wherever a process dies that waits or commits for others, they go on."""

    def among(name: str) -> tuple[Path, Path, Callable[[], int]]:
        folder = place / name
        folder.mkdir()
        ready, other = opened(folder), opened(folder)
        ask(other, "other")
        return folder, waiting(folder, other, "left"), partial(ask, ready, "mine")

    whole, _, asks = among("whole")
    moments = deaths(asks, whole)
    for call, moment in moments:
        folder, left, asks = among(f"kill-{call}-{moment}")
        killed = killed_at(asks, call, moment)
        assert killed == ((call, moment) != moments[-1])
        after = opened(folder)
        after._crowded = True
        ask(after, "next")
        assert sorted(after.state["given"].values()) == list(range(len(after.state["given"])))
        assert len(after.state["seen"]) == len(set(after.state["seen"]))
        assert {"other.0", "left.0", "next.0"} <= set(after.state["seen"])
        assert after.state == replayed(folder)
        left.unlink()


def test_fifty_workers_at_once_wait_for_few_calls_each() -> None:
    """In virtual time: nobody is starved, and most decisions need no fsync of their own."""
    seen = crowd(50, decisions=4, server=FileServer(latency=0.002))
    assert (len(seen.waits), seen.least) == (200, 4)
    assert sum(seen.calls.values()) / 200 < 16
    assert seen.each("fsync") < 0.6
    assert seen.waits[-1] < 100 * 0.002


def test_a_crowd_that_is_far_behind_waits_for_few_facts() -> None:
    """Each shows what it asks for as of the end of the log, whatever it had read before."""
    seen = crowd(60, decisions=1, behind=SNAPSHOT_EVERY + 44)
    assert seen.facts <= 12
    assert seen.calls.total() / 60 < 80
    assert seen.waits[-1] < 1.0


def test_who_loses_every_race_goes_on(folder: Path) -> None:
    """However many rounds it takes, the commit ends with its events in the log, once."""
    late, busy = opened(folder), opened(folder)
    link, losses = late._link, itertools.count()

    def lost(*args: Any) -> bool:
        if next(losses) < 80:
            busy.catch_up()
            ask(busy, f"w{busy.position}")
        return link(*args)

    with mock.patch.object(late, "_link", lost):
        assert ask(late, "late") == 80
    assert late.state == busy.catch_up() == replayed(folder)


def test_a_request_that_others_committed_hundreds_of_facts_ago_counts_once(folder: Path) -> None:
    """Its process hung meanwhile; the cache that it meets has forgotten the request."""
    hung, other = opened(folder), opened(folder)
    hung._crowded = True
    others = WaitingRoom.others

    def much_later(*args: Any) -> Any:
        with mock.patch.object(WaitingRoom, "others", others):
            for number in range(2 * SNAPSHOT_EVERY + 88):
                other._crowded = number == SNAPSHOT_EVERY - 6
                ask(other, f"w{number}")
        return others(*args)

    with mock.patch.object(WaitingRoom, "others", much_later):
        ask(hung, "once")
    assert other.catch_up()["seen"].count("once.0") == 1
    assert hung.catch_up() == other.state == replayed(folder)


def test_a_late_request_for_work_takes_nothing_from_the_process_started_in_its_place(
    folder: Path,
) -> None:
    """A worker that never comes back gets a trial, as one does that died after its request."""
    made = search(8)

    def entered() -> EventLog[SearchState]:
        log = EventLog(folder, made)
        log.catch_up()
        return log

    def request(log: EventLog[SearchState], worker: str, incarnation: str) -> SearchState:
        return log.commit([log.state.request_event(worker, incarnation)])

    def dies_among_others(log: EventLog[SearchState], worker: str) -> None:
        with mock.patch.object(
            WaitingRoom, "others", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        ):
            request(log, worker, "dead")

    request(entered(), "1_0", "first")
    late = {worker: entered() for worker in ("1_0", "1_1")}
    request(entered(), "1_2", "a")
    for worker, log in late.items():
        assert killed_at(partial(dies_among_others, log, worker), 1000, BEFORE)
    live = entered()
    index = request(live, "1_0", "live").assignment("1_0")
    assert index is not None
    token = live.state.trials[index].fencing_token
    after = entered()
    after._crowded = True
    request(after, "1_3", "a")
    trial = live.catch_up().trials[index]
    assert (trial.incarnation, trial.fencing_token) == ("live", token)
    assert live.state.assignment("1_1") is not None


def test_what_counts_of_others() -> None:
    """A request for work until its worker asks again; what names its run, while that is known."""
    made = search(8)
    state = made.initial()
    first = state.request_event("1_0", "a")
    assert made.may_come_late(state, [first])
    made.apply(state, [first, first])
    assert not made.may_come_late(state, [first])
    assert state.requests == {"1_0": 1}
    index = state.assignment("1_0")
    assert index is not None
    asks = state.request_event("1_0", "a")
    token = state.trials[index].fencing_token
    report = {"e": "validated", "trial": index, "time": 1, "metric": 0.5, "fencing_token": token}
    end = {
        "e": "run_ended", "trial": index, "worker": "1_0", "outcome": "stopped",
        "fencing_token": token,
    }  # fmt: skip
    assert made.may_come_late(state, [report])
    assert made.may_come_late(state, [end, asks])
    assert not made.may_come_late(state, [{**report, "fencing_token": None}])
    assert not made.may_come_late(state, [{**asks, "after": None}])
    made.apply(state, [{**asks, "incarnation": "b"}])  # it was requeued
    assert not made.may_come_late(state, [end, asks])


def test_a_request_of_a_former_self_is_passed_over(folder: Path) -> None:
    """It was listed before the worker's new process began, and committed after."""
    made = search(8)
    log, other = EventLog(folder, made), EventLog(folder, made)
    index = log.commit([log.state.request_event("1_0", "a")]).assignment("1_0")
    assert index is not None
    end = {"e": "run_ended", "trial": index, "worker": "1_0", "outcome": "stopped"}
    end["fencing_token"] = log.state.trials[index].fencing_token
    late = CommitRequest.new(log.position, [end, log.state.request_event("1_0", "a")])
    log.commit([log.state.request_event("1_0", "b")])
    other.catch_up()
    assert other._link(CommitRequest.new(2, [other.state.request_event("1_1", "a")]), [late])
    state = log.catch_up()
    assert state == other.state
    assert (state.trials[index].incarnation, state.assignment("1_0")) == ("b", index)
