"""What `gc` need not read again: finished experiments of which it found nothing to delete."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from detslurm._states import UNKNOWN
from detslurm.sdk.disk.leftovers import Known
from detslurm.sdk.disk.usage import SETTLED
from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    Store,
    StoreError,
    fold_experiment,
    rebuildable,
)
from detslurm.store.ledger import LedgerState

SCHEMA: Final = 2  # 1: in a copy, checkpoints of own scripts were the original's


class SettledExperiment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The checkpoints that the records of an experiment name; nobody changes them any more.

    Attributes:
        used: Those that are there for somebody.
        over: Those that should lie nowhere any more.
        base: The directory of its checkpoints; None where they are in a bucket.
    """

    used: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    base: str | None = None


class _Content(msgspec.Struct):
    ledger: LedgerState = msgspec.field(default_factory=LedgerState)
    rows: dict[int, SettledExperiment] = msgspec.field(default_factory=dict)
    root: str = ""  # of the store: it may have been moved or copied since
    schema: int = SCHEMA


class SettledExperiments:
    """One rebuildable file: whoever changes a finished experiment adds to the ledger afterwards,
    which is read before anything else, and so no row hides a later fact."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = store.own("settled.json")
        self._counts: dict[int, int] = {}  # how many facts there were when a row was added
        self._content = self._load()
        for experiment in store.ledger.catch_up(self._content.ledger, thorough=True):
            self._content.rows.pop(experiment, None)
        self._news = False

    @property
    def ledger(self) -> LedgerState:
        """The ledger as it was when this was made."""
        return self._content.ledger

    def get(self, experiment: int) -> SettledExperiment | None:
        """What is known of an experiment; None where it has to be read."""
        return self._content.rows.get(experiment)

    def add(self, experiment: int, row: SettledExperiment, facts: int) -> None:
        """Note that an experiment with so many facts need not be read again until it has more."""
        self._content.rows[experiment] = row
        self._counts[experiment] = facts
        self._news = True

    def save(self) -> None:
        """Keep what was added for the next one, with the changes that this pass has made itself."""
        try:
            self._catch_up()
        except StoreError:
            return  # the next one works a little more
        if not self._news or self._content.ledger.refused:
            return  # what can't be read now would be left out for good
        self._content.root = str(self._store.path)
        rebuildable.save(self._path, self._content, sync=False)

    def _catch_up(self) -> None:
        for experiment in self._store.ledger.catch_up(self._content.ledger):
            if not self._is_current(experiment):
                self._content.rows.pop(experiment, None)

    def _is_current(self, experiment: int) -> bool:
        """Whether nobody has added a fact since the row was added: the ledger names them later."""
        count = self._counts.get(experiment)
        if count is None:
            return False
        directory = self._store.experiment(experiment)
        # A script that goes on with a trial adds no fact.
        return directory.created().managed and not any(directory.facts(count))

    def _load(self) -> _Content:
        content = rebuildable.load(self._path, _Content)
        if content is None or content.schema != SCHEMA:
            return _Content()
        old, new = content.root, str(self._store.path)
        for number, row in content.rows.items() if old and old != new else ():
            base = row.base and rebuildable.relocated(row.base, old, new)
            content.rows[number] = msgspec.structs.replace(row, base=base)
        return content


def settled(
    directory: ExperimentDir, facts: ExperimentFacts, known: Known, base: str | None
) -> SettledExperiment | None:
    """The row of an experiment of which nothing is left to delete; None where that may change.

    What somebody protects may be let go without a change of the experiment.
    """
    if facts.checkpoints.kept or known.elsewhere or known.problems or facts.problems:
        return None
    row = fold_experiment(directory, facts)
    if not row.finished or UNKNOWN in row.trial_states:
        return None
    if row.ended is not None and time.time() - row.ended < SETTLED:
        return None  # what has just ended may still be compacted
    return SettledExperiment(used=tuple(known.used), over=tuple(known.over), base=base)
