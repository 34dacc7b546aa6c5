"""The model registry: numbered facts of the whole store, which give names to checkpoints.

One log of facts has everything, so that their order decides every race: who gets a name, which
number a version has, whether a version was registered before its model was deleted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from detslurm.store import fs, rebuildable
from detslurm.store.errors import RecordMissing, StoreError, not_seen_yet
from detslurm.store.facts import FactLog, refuse_newer
from detslurm.store.models import RegistryState
from detslurm.store.records import Record, plain_of
from detslurm.store.root_access import owner

# Writing the cache costs about as much as reading so many facts.
STALE_AFTER: Final = 32


class ModelRegistry:
    """The registry on disk; any number of processes may change it at once."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.log = FactLog(path)
        self._cache = cache

    def state(self) -> RegistryState:
        """All models as they are now."""
        with self._current() as state:
            return state

    def commit(self, decide: Callable[[RegistryState], Record]) -> RegistryState:
        """Add the fact that `decide` makes of the state before it; returns the state after it.

        `decide` is called again after each lost race. It is a `StoreError` if its fact would have
        no effect, or a fact before it was lost or has a newer format.
        """
        with self._current(thorough=True) as state:
            refuse_newer(self.log.path, state.format)
            if state.missing:
                raise RecordMissing(state.missing, "the model registry is not changed")
            while not self._put(state, decide(state)):
                before = state.position
                self._catch_up(state)
                if state.position == before:
                    raise not_seen_yet(self.log.name(before + 1))
            return state

    @contextmanager
    def _current(self, *, thorough: bool = False) -> Iterator[RegistryState]:
        """The state as it is now; the cache gets it as the block leaves it."""
        state = rebuildable.load(self._cache, RegistryState) or RegistryState()
        known = state.position
        self._catch_up(state, thorough=thorough)
        yield state
        # A fact that can't be read now would be left out for good.
        if state.position - known >= STALE_AFTER and not state.refused:
            rebuildable.save(self._cache, state)

    def _put(self, state: RegistryState, record: Record) -> bool:
        number = state.position + 1
        state.after(record, os.geteuid())
        plain = {"time": time.time(), "by": owner(os.geteuid()), **plain_of(record)}
        won = self.log.put(number, plain)
        if won and (problem := self._accept(state, {**plain, "n": number})):
            raise StoreError(problem)  # the file server gave the fact to another user
        return won

    def _catch_up(self, state: RegistryState, *, thorough: bool = False) -> None:
        for fact in self.log.facts(state.position, skip_refused=True, thorough=thorough):
            self._accept(state, fact)

    def _accept(self, state: RegistryState, fact: dict[str, Any]) -> str | None:
        return state.accept(fact, fs.owner_of(self.log.path_text(fact["n"])))
