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
    """One rebuildable file in the store, its user's alone; without a store nothing is kept.

    Args:
        store: The store.
        refresh: Whether the cluster is asked again for everything.
    """

    def __init__(self, store: Store, *, refresh: bool = False) -> None:
        self._store = store
        now = time.time()
        known = {} if refresh else load_own(store, "queue.json", dict[str, _Entry], {})
        self._entries = {k: e for k, e in known.items() if 0 <= now - e.time < KEPT_SECONDS}
        self.oldest = now
        """When the oldest of the answers that were used was given."""
        self.was_used = False
        """Whether an answer was one from before."""

    def get(self, key: str, kind: type[Answer], ask: Callable[[], Answer]) -> Answer:
        """The answer to a question: a recent answer, or what the cluster answers now.

        Args:
            key: The question.
            kind: The answer's type.
            ask: Asks the cluster.
        """
        if entry := self._entries.get(key):
            try:
                found = msgspec.json.decode(entry.answer, type=kind)
            except ValueError:
                pass  # another version wrote it
            else:
                self.oldest, self.was_used = min(self.oldest, entry.time), True
                return found
        answer = ask()
        self._entries[key] = _Entry(time.time(), msgspec.Raw(msgspec.json.encode(answer)))
        save_own(self._store, "queue.json", self._entries)
        return answer


def load_own(store: Store, name: str, kind: type[Answer], default: Answer) -> Answer:
    """The content of a user's own file in the store; the default where it can't be read."""
    try:
        data = fs.read_file(store.own(name))
        return default if data is None else msgspec.json.decode(data, type=kind)
    except (StoreError, ValueError):
        return default


def save_own(store: Store, name: str, content: object) -> None:
    """Write a user's own file; without a store, or the right to write, none."""
    if not fs.exists(store.path / "experiments", expected=True):
        return  # asking makes no store
    try:
        fs.replace_file(store.own(name), msgspec.json.encode(content), sync=False, secret=True)
    except StoreError:
        pass  # the next command asks again
