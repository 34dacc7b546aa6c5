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
from detslurm.store.facts import SCHEMA, FactLog
from detslurm.store.frame import decode_json, encode_json, frame

S = TypeVar("S")

Events = list[dict[str, Any]]

# The cache is written anew every so many facts.
SNAPSHOT_EVERY: Final = 256
# So many numbers are tried blindly before what lies there is read.
_BLIND: Final = 64
# A fact that a lost reply doubled lies no further from its copy than this.
_MEMORY: Final = 4 * _BLIND


class Fold(Protocol[S]):
    """How events become a state: deterministic, and deaf to events that make no sense."""

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
        self._saved = 0
        self._jump()

    def catch_up(self, *, fresh: bool = False) -> S:
        """Fold what others have added; `fresh` asks the file server for the end."""
        read = 0
        while (fact := self._log.read(self.position + 1, expected=fresh)) is not None:
            self._take(fact)
            read += 1
            if read % SNAPSHOT_EVERY == 0:
                self._jump()
        if self.position - self._saved > 2 * SNAPSHOT_EVERY and not self._is_saved():
            self._save()
        return self.state

    def commit(self, events: Sequence[dict[str, Any]]) -> S:
        """Add the events as one fact; the state with them, and with nothing after them.

        After a `StoreError` they may be in the log or not. The caller commits them again: the fold
        is deaf to what it has heard.
        """
        mark = os.urandom(8).hex()
        record = {"v": SCHEMA, "id": mark, "events": list(events)}
        draft = fs.temporary_name(str(self._log.path / "draft"))
        fs.write_new(draft, frame(record))
        try:
            number = self._link(draft, mark)
        finally:
            fs.discard(draft)
        self._skip_to(number)
        if mark not in self._recent:
            # Exactly as others will read it: not with this process's own objects inside.
            self._take({**decode_json(encode_json(record)), "n": number})
        if self.position == number and number % SNAPSHOT_EVERY == 0:
            self._save()
        return self.state

    def _link(self, draft: str, mark: str) -> int:
        """The number that the draft became; what it passes by is read only afterwards."""
        number = self.position + 1
        while not fs.link_new(draft, str(self._log.name(number))):
            if number - self.position >= _BLIND:
                self.catch_up()
                if mark in self._recent:
                    return self.position
                number = self.position
            number += 1
        return number

    def _skip_to(self, number: int) -> None:
        """Fold the facts before `number`, which are known to exist."""
        while self.position + 1 < number:
            fact = self._log.read(self.position + 1, expected=True)
            if fact is None:
                name = self._log.name(self.position + 1)
                raise StoreError(f"{name} exists but cannot be read on this node yet: try again")
            self._take(fact)

    def _take(self, fact: dict[str, Any]) -> None:
        self.position = fact["n"]
        mark, events = fact.get("id"), fact.get("events")
        if mark in self._recent:
            return  # the same fact under a second number: the reply to its first link got lost
        if isinstance(mark, str):
            self._recent.append(mark)
        if isinstance(events, list):
            self._fold.apply(self.state, [event for event in events if isinstance(event, dict)])

    # -- the cache -------------------------------------------------------------------------------

    def _jump(self) -> None:
        """Go on from the cache where it knows more than this process."""
        found = _read_snapshot(self._cache)
        if found is None or found.position <= self.position:
            return
        try:
            self.state = self._fold.load(found.state)
        except Exception:
            return  # of another version, say: the facts tell the same
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
        try:
            fs.replace_file(self._cache, b"%08x" % crc32(body) + body, sync=False)
        except StoreError:
            pass  # others work a little more


def _read_snapshot(path: Path) -> _Snapshot | None:
    try:
        data = fs.read_file(path)
        if data is None or data[:8] != b"%08x" % crc32(data[8:]):
            return None
        return msgspec.msgpack.decode(data[8:], type=_Snapshot)
    except (StoreError, msgspec.DecodeError):
        return None
