"""The index: rebuildable files that make listing many finished experiments a few reads.

The head is one small file: how far it has read the ledger, and the rows that came last. Once these
are many they are folded into parts, each with the rows of `PART` ids. A part is never changed: a
later one takes its place under another name, and the head names those that count. So what is
written when an experiment ends does not grow with the number of experiments.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from detslurm._states import UNKNOWN
from detslurm.store import fs
from detslurm.store.errors import CorruptRecord, StoreError
from detslurm.store.frame import checked, frame, has_mark, unframe
from detslurm.store.ledger import Ledger, LedgerState
from detslurm.store.views import ExperimentRow

T = TypeVar("T")

# Writing the head costs about as much as reading a ledger tail of this length.
STALE_AFTER: Final = 32
PART: Final = 2000
# With so many rows the head is about an eighth of a part.
FOLD_AFTER: Final = 250


class _Rows(msgspec.Struct):
    """The head's second line, and a part's only one.

    Attributes:
        rows: Rows by no order; the head's replace those of parts.
        parts: Names of the files that hold the other rows, by `id // PART`.
        dropped: Ids of which a part holds a row that counts no more.
    """

    rows: list[ExperimentRow]
    parts: dict[int, str] = msgspec.field(default_factory=dict)
    dropped: list[int] = msgspec.field(default_factory=list)


class Catalog:
    """All experiments at one moment: rows of the finished ones, ids of those still open.

    The ledger's position was read before anything that is folded for a row, and whoever adds a
    fact to a finished experiment adds to the ledger after it: so no row can hide a later fact.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self.ledger, head = _load(path)
        self._rows, self._parts = _joined(_folder(path), head), head.parts
        self._changed = {*head.dropped, *(row.id for row in head.rows)}  # since the parts
        read = self.ledger.position
        for experiment in ledger.catch_up(self.ledger):
            if self._rows.pop(experiment, None) is not None:
                self._changed.add(experiment)
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
        self._changed.update(news)
        if news or self._tail >= STALE_AFTER:
            self.save()

    def save(self) -> None:
        """Publish the index; where that is not possible the next reader works a little more."""
        if self.ledger.refused:
            return  # what can't be read now would be left out for good
        try:
            if len(self._changed) >= FOLD_AFTER:
                self._fold()
            fs.replace_file(self._path, self._head())
        except StoreError:
            return
        self._tail = 0

    def _head(self) -> bytes:
        dropped = sorted(self._changed - self._rows.keys())
        rows = [self._rows[number] for number in sorted(self._changed & self._rows.keys())]
        ledger = {"ledger": msgspec.to_builtins(self.ledger)}
        return frame(ledger) + _line(_Rows(rows, self._parts, dropped))

    def _fold(self) -> None:
        """Write the parts anew in which something has changed."""
        folder, parts = _folder(self._path), {**self._parts}
        fs.ensure_directory(folder, secret=True)
        for place in sorted({number // PART for number in self._changed}):
            ids = range(place * PART, (place + 1) * PART)
            line = _line(_Rows([self._rows[number] for number in ids if number in self._rows]))
            parts[place] = f"{place:06d}-{line[:8].decode()}.json"
            fs.replace_file(folder / parts[place], line, sync=False)
            self._forget(folder, place, {parts[place], self._parts.get(place)})
        self._parts = parts
        self._changed.clear()

    def _forget(self, folder: Path, place: int, needed: set[str | None]) -> None:
        """Remove what stood in a part's place before the last one: somebody may read that now, and
        another listing may publish what is newer."""
        last = self._parts.get(place)
        since = fs.modified(folder / last) if last is not None else None
        if since is None:
            return
        for name in fs.names_in(folder):
            mine = name.startswith(f"{place:06d}-") and name not in needed
            if mine and (fs.modified(folder / name) or since) < since:
                fs.discard(str(folder / name))


def _folder(path: Path) -> Path:
    return path.with_suffix(".parts")


def _line(rows: _Rows) -> bytes:
    return frame(msgspec.to_builtins(rows, str_keys=True))


def ledger_state(path: Path, ledger: Ledger) -> LedgerState:
    """The ledger folded to its end, from the index and the tail; saves the index when stale."""
    state = _ledger(_lines(path))
    known = state.position
    ledger.catch_up(state)
    if state.position - known >= STALE_AFTER:
        Catalog(path, ledger).save()
    return state


def _load(path: Path) -> tuple[LedgerState, _Rows]:
    lines = _lines(path)
    head = _typed(lines[1], _Rows) if len(lines) > 1 else None
    if head is None:  # what cannot be read is rebuilt
        return LedgerState(), _Rows([])
    return _ledger(lines), head


def _joined(folder: Path, head: _Rows) -> dict[int, ExperimentRow]:
    """All rows; those of a part that is gone are not known, and are folded again."""
    rows: dict[int, ExperimentRow] = {}
    for place, name in sorted(head.parts.items()):
        part = _typed(_lines(folder / name, expected=True)[0], _Rows)
        if part is None:
            head.parts.pop(place)
            continue
        rows.update((row.id, row) for row in part.rows)
    for number in head.dropped:
        rows.pop(number, None)
    rows.update((row.id, row) for row in head.rows)
    return rows


class _Ledger(msgspec.Struct):
    ledger: LedgerState


def _ledger(lines: list[bytes]) -> LedgerState:
    found = _typed(lines[0], _Ledger)
    return LedgerState() if found is None else found.ledger


def _lines(path: Path, *, expected: bool = False) -> list[bytes]:
    try:
        return (fs.read_file(path, expected=expected) or b"").split(b"\n")
    except StoreError:
        return [b""]


def _typed(line: bytes, kind: type[T]) -> T | None:
    """What a line holds; None where that can't be told."""
    try:
        raw = checked(line)
        if has_mark(raw):
            return msgspec.convert(unframe(line), kind, str_keys=True)
        return msgspec.json.decode(raw, type=kind)
    except (CorruptRecord, msgspec.DecodeError, UnicodeDecodeError):
        return None
