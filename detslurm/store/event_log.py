"""A log of events that many processes append to, and the state that follows from them.

Each append is a numbered fact with one or more events; the state after fact n is the fold of facts
1..n, the same in every process. So a decision is the commit of the event that it follows from:
it can't be made twice, and no process holds a lock meanwhile. The loser of a race for a number
leaves its events where others see them, and the next winner commits them with its own.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from zlib import crc32

import msgspec

from detslurm import __version__
from detslurm.store import fs
from detslurm.store.commit_race import LONGEST, REMEMBERED, Patience, Seen, Turn, next_turn
from detslurm.store.errors import RecordMissing, StoreError, not_seen_yet
from detslurm.store.facts import FactLog, format_of, read_record, refuse_newer
from detslurm.store.frame import decode_json, encode_json, frame
from detslurm.store.waiting_room import CommitRequest, Visit, WaitingRoom

S = TypeVar("S")

Events = list[dict[str, Any]]

# How many facts lie between two versions of the cache, at least, and of how many facts one of them
# may be the tail that is read without it: the state grows with its facts, and so do the cost of a
# version and the number of decisions that share it.
SNAPSHOT_EVERY: Final = 256
_TAIL_SHARE: Final = 16
# How many facts a pack holds, for readers that are as far behind.
PACK_OF: Final = 16
# How long those that don't lead wait, in calls of the file server: a leader needs as many.
_CALLS, _SHORTEST = 6.0, 0.001
# How many seconds a fact is not lost after it was written.
_SAFE: Final = 60.0


class Fold(Protocol[S]):
    """How events become a state: deterministic, and unchanged by events that make no sense."""

    def initial(self) -> S:
        """The state before the first event."""

    def apply(self, state: S, events: Events) -> None:
        """Take the events in, in place."""

    def dump(self, state: S) -> bytes:
        """The state as bytes."""

    def load(self, data: bytes) -> S:
        """The state that `dump` wrote; any exception where it can't be used."""

    def may_come_late(self, state: S, events: Events) -> bool:
        """Whether events still count that another process adds, maybe after their own has died.

        The answer is part of the log's format: all versions must give the same answer.
        """


class _Snapshot(msgspec.Struct, array_like=True):
    position: int
    recent: list[list[str]]
    state: bytes
    writer: str = ""  # its version: a state lacks the part that its writer does not know


class EventLog(Generic[S]):
    """The events below `path` (a directory that exists) and their fold."""

    def __init__(self, path: Path, fold: Fold[S]) -> None:
        self._log = FactLog(path)
        self._cache = path / "state.bin"
        self._fold = fold
        self.position = 0
        self.state = fold.initial()
        self._recent: deque[list[str]] = deque()  # the marks of each of the last facts
        self._marks: set[str] = set()  # the same marks
        self._room = WaitingRoom(path / "waiting")
        self._call = LONGEST  # seconds of a call, as the quicker ones took
        self._crowded = False  # whether the last commit met others
        self._tail: deque[dict[str, Any]] = deque(maxlen=PACK_OF)
        self._open: CommitRequest | None = None  # not known to be committed
        self._saved = 0
        self._looked = time.monotonic()  # when a later fact than the next was looked for
        self._whole = False  # whether a listing has shown no fact beyond the end
        self._load_cache()

    def catch_up(self) -> S:
        """Fold what others have added."""
        self._read_on()
        if not self._is_cached() and not self._is_saved():
            self.save()
        return self.state

    def _read_on(self, *, until: str = "", sure: bool = True) -> None:
        """Fold all that the file server has, or up to the fact with the mark `until`.

        Facts that the cache has by then are skipped. With `sure=False` a cached "no such file" is
        accepted: if it is stale, the next link fails.
        """
        read = 0
        while until not in self._marks and (facts := self._next(sure=sure)):
            for fact in facts:
                self._take(fact)
            read += len(facts)
            # Not past that mark: the cache may know no more that it was there.
            if read >= snapshot_interval(self.position) and until not in self._marks:
                read = 0
                self._load_cache()

    def commit(self, events: Sequence[dict[str, Any]]) -> S:
        """Add the events; the state with them, and with nothing after the fact that has them.

        After a `StoreError` they may be in the log or not, or come to be. The caller commits them
        again, with the same log at once, or with another: the fold ignores what it has applied
        before.
        """
        plain = list(events)
        if self._open is None or self._open.events != plain:
            self._open = CommitRequest.new(self.position, plain)
        own = self._open
        if not self._whole and self._next_is_lost():  # its number is free, and not to be given
            self._read_on()
        if self._crowded or not self._link(own):
            self._commit_among_others(own)
        self._open = None
        return self.state

    def _commit_among_others(self, own: CommitRequest) -> None:
        """Leave the events where others see them, and commit for all unless another one does.

        All that wait are in one directory, with their events in their files' names: one call lists
        them. The first of them commit for all, and the others wait as long as that takes; a process
        is done when its events are in the log, after four calls and without any fsync. The list is
        no promise: an old one costs time. Urgent events are not shown: their process commits them
        alone, after a random pause that doubles with each race it loses.
        """
        # Another process has the next number if the first link has just failed.
        is_taken, patience, met = not self._crowded, None, False
        while (turn := next_turn(own, self._seen())) is not Turn.DONE:
            # The mark stays: it may have been shown before, and be in another process's list.
            own = self._open = own._replace(position=self.position)
            turn = next_turn(own, self._seen())  # not `ASK_AGAIN` any more
            shown = self._fold.may_come_late(self.state, own.events)
            with self._room.entered(own, shown=shown) as visit:
                patience = patience or Patience(self._first_pause(visit))
                while turn in (Turn.WAIT, Turn.LEAD):
                    names = self._room.others(visit)
                    met = met or any(True for _ in self._seen().waiting(names))
                    turn, is_taken = self._round(own, visit, names, patience, is_taken=is_taken)
                    patience = patience.longer()
        self._crowded = met

    def _round(
        self,
        own: CommitRequest,
        visit: Visit,
        names: list[str],
        patience: Patience,
        *,
        is_taken: bool,
    ) -> tuple[Turn, bool]:
        """Wait, read on and commit as this round has it; the next turn, and whether the next number
        is another process's.
        """
        turn = next_turn(own, self._seen(), names, shown=visit.name or "", leaders=patience.leaders)
        is_shown = visit.name is not None
        if seconds := patience.seconds(turn, is_shown=is_shown, chance=_random()):
            time.sleep(seconds)
        if is_taken:
            self._read_number()
        self._read_on(until=own.mark, sure=False)
        now = next_turn(own, self._seen())
        if turn is not Turn.LEAD or now is not Turn.LEAD:
            return now, False
        others = [one for one in self._seen().taken_along(names) if self._counts(one)]
        is_taken = not self._link(own, others)
        return next_turn(own, self._seen()), is_taken

    def _seen(self) -> Seen:
        return Seen(self.position, self._marks)

    def _first_pause(self, visit: Visit) -> float:
        if visit.name is None:
            return _SHORTEST
        self._call = min(1.25 * self._call, visit.call)
        return min(max(_CALLS * self._call, _SHORTEST), LONGEST)

    def _counts(self, request: CommitRequest) -> bool:
        """Whether a request of another process would change anything still."""
        return self._fold.may_come_late(self.state, request.events)

    def _read_number(self) -> None:
        """Fold the facts from the next number on, which is taken."""
        facts = self._next()
        if not facts:
            raise not_seen_yet(self._log.name(self.position + 1))
        for fact in facts:
            self._take(fact)

    def _link(self, own: CommitRequest, others: Sequence[CommitRequest] = ()) -> bool:
        """Make a request, and those of others, the next fact; False where its number is taken.

        `link()` decides the race for a number: of all processes on all nodes one gets it. Over NFS
        the reply to a link that took place may get lost, and the repeated request then fails with
        EEXIST, as if another process had won: reading that number finds our own mark there.
        """
        number = self.position + 1
        if self._may_be_lost(number):
            self._whole = False  # reading shows whether the number was lost or taken
            return False
        record: dict[str, Any] = {"v": 1, "id": own.mark, "events": own.events}
        if others:
            record["others"] = [[one.mark, one.position, one.events] for one in others]
        draft = fs.temporary_name(str(self._log.path / "draft"))
        fs.write_new(draft, frame(record))
        try:
            if not fs.link_new(draft, self._log.path_text(number)):
                return False
        finally:
            fs.discard(draft)
        # Exactly as others will read it: not with this process's own objects inside.
        fact = {**decode_json(encode_json(record)), "n": number}
        if number % PACK_OF == 0:
            self._pack(number, fact)
        self._take(fact)
        if number % REMEMBERED == 0:
            self._room.clear(number - 2 * REMEMBERED)
        if number % snapshot_interval(number) == 0:
            self.save()
        return True

    def _may_be_lost(self, number: int) -> bool:
        """Whether the next fact has a later one already. Facts are lost long after they were
        written, so that a busy worker need not look."""
        looked, self._looked = self._looked, time.monotonic()
        return self._looked - looked > _SAFE and fs.exists(self._log.path_text(number + 1))

    # -- packs: many facts in one file, for those that are far behind ----------------------------

    def _next(self, *, sure: bool = True) -> list[dict[str, Any]]:
        """The facts after this position: a pack of them, or the next fact; none at the end.

        Raises `RecordMissing` where the next fact was lost.
        """
        if self.position % PACK_OF == 0:
            pack = read_record(_pack_name(self._log, self.position + PACK_OF)) or {}
            if facts := _following(pack.get("facts"), self.position):
                return facts
        fact = self._log.read(self.position + 1, expected=sure)
        if fact is None and not self._whole:
            if self._next_is_lost():
                return self._packed(self.position + 1)
            if not self._whole:  # it has come meanwhile
                fact = self._log.read(self.position + 1, expected=True)
        return [] if fact is None else [fact]

    def _next_is_lost(self) -> bool:
        """Whether the next fact is missing although later facts are listed.

        One listing that shows the end is enough: facts are lost long after they were written.
        """
        self._whole = self._log.last_listed() <= self.position
        return not (self._whole or fs.exists(self._log.name(self.position + 1), expected=True))

    def _packed(self, number: int) -> list[dict[str, Any]]:
        """The facts from a lost one on that its pack has."""
        facts = packed(self._log, number)
        if not facts:
            raise RecordMissing(self._log.name(number), "what the search decided is unknown")
        return facts

    def _pack(self, number: int, own: dict[str, Any]) -> None:
        """Write the pack that ends with a fact of our own, before anything else: others wait."""
        known = {fact["n"]: fact for fact in self._tail} | {number: own}
        wanted = range(number - PACK_OF + 1, number + 1)
        facts = [known.get(n) or self._log.read(n, expected=True) for n in wanted]
        if None not in facts:
            self._replace(_pack_name(self._log, number), frame({"v": 1, "facts": facts}))

    def _replace(self, path: fs.AnyPath, data: bytes) -> None:
        with suppress(StoreError):  # others work a little more
            fs.replace_file(path, data, sync=False)

    def _take(self, fact: dict[str, Any]) -> None:
        refuse_newer(self._log.path_text(fact["n"]), format_of(fact))
        self.position = fact["n"]
        self._tail.append(fact)
        marks: list[str] = []
        for place, (mark, found) in enumerate(_requests_of(fact)):
            if not isinstance(found, list) or (isinstance(mark, str) and mark in self._marks):
                continue  # a copy: the reply to its first link got lost, or it was still listed
            events = [event for event in found if isinstance(event, dict)]
            if place and not self._fold.may_come_late(self.state, events):
                continue  # where its process lives, it commits them itself
            if isinstance(mark, str):
                marks.append(mark)
                self._marks.add(mark)
            self._fold.apply(self.state, events)
        self._recent.append(marks)
        while len(self._recent) > REMEMBERED:
            self._marks.difference_update(self._recent.popleft())

    # -- the cache -------------------------------------------------------------------------------

    def _load_cache(self) -> None:
        """Go on from the cache where it knows more than this process."""
        found = _read_snapshot(self._cache)
        if found is None or found.position <= self.position:
            return
        try:
            self.state = self._fold.load(found.state)
        except Exception:
            return  # written by another version, for example: the facts give the same state
        self.position = self._saved = found.position
        self._recent = deque(found.recent)
        self._marks = {mark for marks in found.recent for mark in marks}

    def _is_cached(self) -> bool:
        """Whether the cache, as far as is known, holds enough of the state."""
        return self.position - self._saved <= 2 * snapshot_interval(self.position)

    def _is_saved(self) -> bool:
        """Whether the committer that was to write the cache did so: it may have died."""
        found = _read_snapshot(self._cache)
        self._saved = max(self._saved, found.position if found is not None else 0)
        return self._is_cached()

    def save(self) -> None:
        """Write the cache now."""
        try:
            state = self._fold.dump(self.state)
        except OverflowError:
            return  # an event has an integer beyond 64 bits: facts hold it, the cache can't
        snapshot = _Snapshot(self.position, list(self._recent), state, __version__)
        body = msgspec.msgpack.encode(snapshot)
        self._saved = self.position
        self._replace(self._cache, b"%08x" % crc32(body) + body)


class _Recorder(Generic[S]):
    """A fold that remembers its events."""

    def __init__(self, fold: Fold[S]) -> None:
        self._fold = fold
        self.events: Events = []
        self.initial, self.dump = fold.initial, fold.dump
        self.may_come_late = fold.may_come_late

    def apply(self, state: S, events: Events) -> None:
        self.events += events
        self._fold.apply(state, events)

    def load(self, data: bytes) -> S:
        raise ValueError("the cache lacks the events")


def logged_events(path: Path, fold: Fold[S]) -> Events:
    """The events of the log below `path` that count, in order."""
    recorder = _Recorder(fold)
    EventLog(path, recorder).catch_up()
    return recorder.events


def packed(log: FactLog, number: int) -> list[dict[str, Any]]:
    """The facts from this number on that its pack has, if there is that pack."""
    end = -(-number // PACK_OF) * PACK_OF
    pack = read_record(_pack_name(log, end), expected=True) or {}
    return [f for f in _following(pack.get("facts"), end - PACK_OF) if f["n"] >= number]


def _pack_name(log: FactLog, number: int) -> str:
    return log.path_text(number).removesuffix(".json") + ".pack"


def snapshot_interval(number: int) -> int:
    """How many facts lie between the versions of the cache around fact `number`.

    It follows from the number alone, so that all processes agree on who writes the cache. It is
    `SNAPSHOT_EVERY` or, in a long log, between a 32nd and a 16th of the facts; always a power of
    two times `SNAPSHOT_EVERY`, so that a longer interval begins where a shorter one ends.
    """
    times = number // (_TAIL_SHARE * SNAPSHOT_EVERY)
    return SNAPSHOT_EVERY << max(times.bit_length() - 1, 0)


def _following(facts: Any, position: int) -> list[dict[str, Any]]:
    """The facts of a pack, if they are those after a position."""
    found = [f for f in facts if isinstance(f, dict)] if isinstance(facts, list) else []
    wanted = range(position + 1, position + 1 + PACK_OF)
    return found if [fact.get("n") for fact in found] == list(wanted) else []


def _requests_of(fact: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The marks and events of a fact: its writer's, then what others had left in time."""
    yield fact.get("id"), fact.get("events")
    others = fact.get("others")
    for other in others if isinstance(others, list) else ():
        match other:
            case [mark, int(position), events] if fact["n"] <= position + REMEMBERED:
                yield mark, events


def _random() -> float:
    """From 0 to 1."""
    return os.urandom(1)[0] / 255  # `random` itself costs each process ten path calls


def _read_snapshot(path: Path) -> _Snapshot | None:
    try:
        data = fs.read_file(path)
        if data is None or data[:8] != b"%08x" % crc32(data[8:]):
            return None
        found = msgspec.msgpack.decode(data[8:], type=_Snapshot)
    except (StoreError, msgspec.DecodeError):
        return None
    return found if found.writer == __version__ else None
