"""A log of events that many processes append to, and the state that follows from them.

Each append is a numbered fact with one or more events; the state after fact n is the fold of facts
1..n, the same for whoever folds. So a decision is the commit of the event that it follows from:
it can't be made twice, and nobody holds a lock meanwhile.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar
from zlib import crc32

import msgspec

from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.facts import SCHEMA, FactLog, read_record
from detslurm.store.frame import decode_json, encode_json, frame

S = TypeVar("S")

Events = list[dict[str, Any]]

# How many facts lie between two versions of the cache.
SNAPSHOT_EVERY: Final = 256
# How many facts a pack holds, for readers that are as far behind.
PACK_OF: Final = 16
# How many numbers are tried one after the other before the end of the log is searched for.
_BLIND: Final = 8
# A fact that a lost reply doubled lies no further from its copy than this.
_MEMORY: Final = 256


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


class _Snapshot(msgspec.Struct, array_like=True):
    position: int
    recent: list[str]
    state: bytes


class EventLog(Generic[S]):
    """The events below `path` (a directory that exists) and their fold."""

    def __init__(self, path: Path, fold: Fold[S]) -> None:
        self._log = FactLog(path)
        self._cache = path / "state.bin"
        self._fold = fold
        self.position = 0
        self.state = fold.initial()
        self._recent: deque[str] = deque(maxlen=_MEMORY)
        self._tail: deque[dict[str, Any]] = deque(maxlen=PACK_OF)
        self._committing = ""  # the mark of a fact that is being committed
        self._saved = 0
        self._load_cache()

    def catch_up(self) -> S:
        """Fold what others have added."""
        self._read_on(from_cache=True)
        if self.position - self._saved > 2 * SNAPSHOT_EVERY and not self._is_saved():
            self._save()
        return self.state

    def _read_on(self, *, from_cache: bool = False) -> None:
        """Fold all that the file server has; `from_cache` skips what the cache has by then."""
        read = 0
        while facts := self._next():
            for fact in facts:
                self._take(fact)
            read += len(facts)
            if from_cache and read >= SNAPSHOT_EVERY:
                read = 0
                self._load_cache()

    def commit(self, events: Sequence[dict[str, Any]]) -> S:
        """Add the events as one fact; the state with them, and with nothing after them.

        After a `StoreError` they may be in the log or not. The caller commits them again: the fold
        ignores what it has applied before.
        """
        mark = os.urandom(8).hex()
        record = {"v": SCHEMA, "id": mark, "events": list(events)}
        draft = fs.temporary_name(str(self._log.path / "draft"))
        fs.write_new(draft, frame(record))
        try:
            number = self._link(draft, mark)
        finally:
            fs.discard(draft)
        if number is None:
            return self.state  # it was in the log already: the reply to its link got lost
        if number % PACK_OF == 0:
            self._pack(number, record)
        self._skip_to(number)
        if mark not in self._recent:
            # Exactly as others will read it: not with this process's own objects inside.
            self._take({**decode_json(encode_json(record)), "n": number})
        if self.position == number and number % SNAPSHOT_EVERY == 0:
            self._save()
        return self.state

    def _link(self, draft: str, mark: str) -> int | None:
        """The number that the draft became; what it passes by is read only afterwards.

        `link()` decides the race for a number: of all processes on all nodes one gets it, and the
        others try the next. Over NFS the reply to a link that took place may get lost, and the
        repeated request then fails with EEXIST, as if another process had won. So before the end
        of the log is searched for, the draft's link count is read: above 1 it is in the log, and
        reading on finds it by its mark. Where a later number was taken before that, the events are
        in the log twice, and by the mark every reader skips the second copy.
        """
        number, tries, self._committing = self.position + 1, 1, mark
        while not fs.link_new(draft, self._log.path_text(number)):
            if tries % _BLIND:
                number += 1
            else:
                if fs.is_linked(draft):
                    self._read_on()
                    if self._committing != mark:
                        return None
                number = self._end(number)
            tries += 1
        return number

    def _end(self, taken: int) -> int:
        """The first free number past one that is taken, by a binary search of names."""
        step = 1
        while fs.exists(self._log.path_text(taken + step)):
            step *= 2
        low, free = taken + step // 2, taken + step
        while free - low > 1:
            middle = (low + free) // 2
            if fs.exists(self._log.path_text(middle)):
                low = middle
            else:
                free = middle
        return free

    def _skip_to(self, number: int) -> None:
        """Fold the facts before `number`, which are known to exist."""
        while self.position + 1 < number:
            facts = self._next(packed=self.position + PACK_OF < number)
            if not facts:
                name = self._log.name(self.position + 1)
                raise StoreError(f"{name} exists but cannot be read on this node yet: try again")
            for fact in facts:
                self._take(fact)

    # -- packs: many facts in one file, for those that are far behind ----------------------------

    def _next(self, *, packed: bool = True) -> list[dict[str, Any]]:
        """The facts after this position: a pack of them, or the next one; none at the end."""
        if packed and self.position % PACK_OF == 0:
            pack = read_record(self._pack_name(self.position + PACK_OF)) or {}
            if facts := pack.get("facts"):
                return list(facts)
        fact = self._log.read(self.position + 1, expected=True)
        return [] if fact is None else [fact]

    def _pack(self, number: int, record: dict[str, Any]) -> None:
        """Write the pack that ends with a fact of our own, before anything else: others wait."""
        known = {fact["n"]: fact for fact in self._tail} | {number: {**record, "n": number}}
        wanted = range(number - PACK_OF + 1, number + 1)
        facts = [known.get(n) or self._log.read(n, expected=True) for n in wanted]
        if None not in facts:
            self._replace(self._pack_name(number), frame({"v": SCHEMA, "facts": facts}))

    def _pack_name(self, number: int) -> str:
        return self._log.path_text(number).removesuffix(".json") + ".pack"

    def _replace(self, path: fs.AnyPath, data: bytes) -> None:
        try:
            fs.replace_file(path, data, sync=False)
        except StoreError:
            pass  # others work a little more

    def _take(self, fact: dict[str, Any]) -> None:
        self.position = fact["n"]
        self._tail.append(fact)
        mark, events = fact.get("id"), fact.get("events")
        if mark == self._committing:
            self._committing = ""
        if mark in self._recent:
            return  # the same fact under a second number: the reply to its first link got lost
        if isinstance(mark, str):
            self._recent.append(mark)
        if isinstance(events, list):
            self._fold.apply(self.state, [event for event in events if isinstance(event, dict)])

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
        self._recent = deque(found.recent, maxlen=_MEMORY)

    def _is_saved(self) -> bool:
        """Whether the committer that was to write the cache did so: it may have died."""
        found = _read_snapshot(self._cache)
        self._saved = max(self._saved, found.position if found is not None else 0)
        return self.position - self._saved <= 2 * SNAPSHOT_EVERY

    def _save(self) -> None:
        snapshot = _Snapshot(self.position, list(self._recent), self._fold.dump(self.state))
        body = msgspec.msgpack.encode(snapshot)
        self._saved = self.position
        self._replace(self._cache, b"%08x" % crc32(body) + body)


def _read_snapshot(path: Path) -> _Snapshot | None:
    try:
        data = fs.read_file(path)
        if data is None or data[:8] != b"%08x" % crc32(data[8:]):
            return None
        return msgspec.msgpack.decode(data[8:], type=_Snapshot)
    except (StoreError, msgspec.DecodeError):
        return None
