"""The part of `Client` that finds checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from detslurm.sdk.errors import LifecycleError
from detslurm.store import NotFound

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.store import Store

SHORTEST = 4
"""How many characters of a storage id are enough, where only one checkpoint begins so."""

WHOLE = 36


class FindingCheckpoints:
    """Finds checkpoints of all experiments of a store, without walking through directories."""

    store: Store
    warn: Callable[[str], None]

    @abstractmethod
    def missing(self) -> str | None:
        """Return why there is no store; None if it exists."""

    @abstractmethod
    def _ids(self, words: Iterable[int | str] | None) -> list[int] | None: ...

    def checkpoints(
        self, experiment_ids: Iterable[int | str] | None = None, *, deleted: bool = False
    ) -> list[Checkpoint]:
        """Return checkpoints as they were recorded, by experiment and trial: those of the
        experiments with the ids or names `experiment_ids`, by default of all that can be read, and
        with `deleted` also deleted ones. Their files are not looked at. Raises `NotFound` without a
        store or one of the experiments."""
        from detslurm.sdk.checkpoints.catalog import saved_checkpoints
        from detslurm.sdk.checkpoints.choosing import objects

        if text := self.missing():
            raise NotFound(text)
        ids = self._ids(experiment_ids)
        for number in ids or ():
            self.store.experiment(number)
        found = objects(self.store, saved_checkpoints(self.store, self.warn, ids))
        return [one for one in found if deleted or one.state != "DELETED"]

    def checkpoint(self, uuid: str) -> Checkpoint:
        """Return the checkpoint `uuid`, of which 4 characters of the beginning are enough. It is a
        `LifecycleError` if there is none, or several begin so, `NotFound` without a store."""
        uuid = str(uuid)  # uuid.UUID is accepted, too
        if len(uuid) < SHORTEST:
            raise LifecycleError(f"{uuid!r} is too short: give at least {SHORTEST} characters")
        if text := self.missing():
            raise NotFound(text)
        return found_in(self.store, uuid, self.warn)


def found_in(store: Store, uuid: str, warn: Callable[[str], None]) -> Checkpoint:
    """The checkpoint with this storage id, or whose id begins so. Raises `NotFound` for none,
    `LifecycleError` for several."""
    from detslurm.sdk.checkpoints.catalog import saved_checkpoints
    from detslurm.sdk.checkpoints.choosing import found_by, objects
    from detslurm.store.checkpoint_index import checkpoint_index

    if len(uuid) >= WHOLE:  # no other one begins so
        for one in objects(store, checkpoint_index(store).rows.values()):
            if one.uuid == uuid:
                return one
    return found_by(objects(store, saved_checkpoints(store, warn)), uuid)
