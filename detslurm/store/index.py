"""The index: one rebuildable file that makes listing a thousand finished experiments one read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from detslurm._states import UNKNOWN
from detslurm.store import fs
from detslurm.store.errors import CorruptRecord, StoreError
from detslurm.store.frame import frame, unframe
from detslurm.store.ledger import Ledger, LedgerState
from detslurm.store.views import ExperimentRow

T = TypeVar("T")

# Writing the index costs about as much as reading a ledger tail of this length.
STALE_AFTER: Final = 32


class Catalog:
    """All experiments at one moment: rows of the finished ones, ids of those still open.

    The ledger's position was read before anything that is folded for a row, and whoever adds a
    fact to a finished experiment adds to the ledger after it: so no row can hide a later fact.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self.ledger, self._rows = _load(self._path)
        read = self.ledger.position
        for experiment in ledger.catch_up(self.ledger):
            self._rows.pop(experiment, None)
        self._tail = self.ledger.position - read

    @property
    def finished(self) -> dict[int, ExperimentRow]:
        """Rows of finished experiments, those deleted included."""
        return self._rows

    @property
    def problems(self) -> list[str]:
        """What could not be read of the ledger."""
        return self.ledger.problems

    @property
    def unfinished(self) -> list[int]:
        """Ids of experiments whose rows must be folded again, ascending."""
        return [e for e in self.ledger.experiments() if e not in self._rows]

    def settle(self, rows: Iterable[ExperimentRow]) -> None:
        """Take in freshly folded rows, keep those that are final, save the index if it pays."""
        news = {row.id: row for row in rows if row.finished and UNKNOWN not in row.trial_states}
        self._rows.update(news)
        if news or self._tail >= STALE_AFTER:
            self.save()

    def save(self) -> None:
        """Publish the index; where that is not possible the next reader works a little more."""
        if self.ledger.refused:
            return  # what can't be read now would be left out for good
        parts = (
            {"ledger": msgspec.to_builtins(self.ledger)},
            {"rows": msgspec.to_builtins(list(self._rows.values()))},
        )
        try:
            fs.replace_file(self._path, b"".join(frame(part) for part in parts))
        except StoreError:
            return
        self._tail = 0


def ledger_state(path: Path, ledger: Ledger) -> LedgerState:
    """The ledger folded to its end, from the index and the tail; saves the index when stale."""
    state = _ledger(_lines(path))
    known = state.position
    ledger.catch_up(state)
    if state.position - known >= STALE_AFTER:
        Catalog(path, ledger).save()
    return state


def _load(path: Path) -> tuple[LedgerState, dict[int, ExperimentRow]]:
    lines = _lines(path)
    state = _ledger(lines)
    rows = _part(lines, 1, "rows", list[ExperimentRow])
    if rows is None:  # what cannot be read is rebuilt
        return (LedgerState(), {}) if lines else (state, {})
    return state, {row.id: row for row in rows}


def _ledger(lines: list[bytes]) -> LedgerState:
    return _part(lines, 0, "ledger", LedgerState) or LedgerState()


def _lines(path: Path) -> list[bytes]:
    try:
        return (fs.read_file(path) or b"").split(b"\n")
    except StoreError:
        return []


def _part(lines: list[bytes], place: int, name: str, kind: type[T]) -> T | None:
    try:
        value: Any = unframe(lines[place])
        return msgspec.convert(value[name], kind)
    except (CorruptRecord, KeyError, IndexError, msgspec.ValidationError):
        return None
