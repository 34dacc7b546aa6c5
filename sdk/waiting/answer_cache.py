"""A cluster's answers of the last minute, for all processes of a user."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from detslurm.store import Store, StoreError, fs

KEPT_SECONDS: Final = 60.0

Answer = TypeVar("Answer")


class _Entry(msgspec.Struct):
    time: float
    answer: msgspec.Raw


class AnswerCache:
    """One rebuildable file in the `store`, its user's alone; without a store nothing is kept. With
    `refresh` the cluster is asked again for everything."""

    def __init__(self, store: Store, *, refresh: bool = False) -> None:
        self._store = store
        self._entries = {} if refresh else self._load()
        self.oldest = time.time()
        """When the oldest of the answers that were used was given."""
        self.was_used = False
        """Whether an answer was one from before."""

    def get(self, key: str, kind: type[Answer], ask: Callable[[], Answer]) -> Answer:
        """The answer of the type `kind` to the question `key`: a recent answer, or what the cluster
        answers now when `ask` asks it."""
        entry, now = self._entries.get(key), time.time()
        if entry is not None and 0 <= now - entry.time < KEPT_SECONDS:
            try:
                found = msgspec.json.decode(entry.answer, type=kind)
            except ValueError:
                found = None  # another version wrote it
            if found is not None:
                self.oldest, self.was_used = min(self.oldest, entry.time), True
                return found
        answer = ask()
        self._entries[key] = _Entry(now, msgspec.Raw(msgspec.json.encode(answer)))
        self._save(now)
        return answer

    def _load(self) -> dict[str, _Entry]:
        try:
            data = fs.read_file(self._store.own("queue.json"))
            return msgspec.json.decode(data or b"{}", type=dict[str, _Entry])
        except (StoreError, ValueError):
            return {}

    def _save(self, now: float) -> None:
        if not fs.exists(self._store.path / "experiments", expected=True):
            return  # asking makes no store
        fresh = {k: e for k, e in self._entries.items() if 0 <= now - e.time < KEPT_SECONDS}
        try:
            data = msgspec.json.encode(fresh)
            fs.replace_file(self._store.own("queue.json"), data, sync=False, secret=True)
        except StoreError:
            pass  # the next one asks again
