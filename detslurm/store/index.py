"""The index: rebuildable files that make listing many finished experiments a few reads.

The head is one small file: how far it has read the ledger, which experiments have to be folded, and
the rows that came last. Once these are many they are folded into parts, each with the rows of
`PART` ids. A part is never changed: a later one takes its place under another name, and the head
names those that count. So neither the write when an experiment ends nor the read that lists the
newest ones grows with the number of experiments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from detslurm._base.states import UNKNOWN
from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.facts import is_newer
from detslurm.store.ledger import Block, Ledger, LedgerState
from detslurm.store.rebuildable import line_of, lines_in, typed
from detslurm.store.trial_ids import TrialIds
from detslurm.store.views import ExperimentRow

# Writing the head costs about as much as reading a ledger tail of this length.
STALE_AFTER: Final = 32
PART: Final = 2000
# With so many rows the head is about an eighth of a part.
FOLD_AFTER: Final = 250


class _Ids(msgspec.Struct):
    """The head's first line: all that is needed to find trials and to give away new ids."""

    ids: TrialIds


class _Rows(msgspec.Struct):
    """The head's second line, and a part's only line."""

    rows: list[ExperimentRow]  # rows by no order; the head's replace those of parts
    # Names of the files that hold the other rows, by `id // PART`.
    parts: dict[int, str] = msgspec.field(default_factory=dict)
    # Ids of experiments that have to be folded, even if a part has their rows.
    open: list[int] = msgspec.field(default_factory=list)


class Catalog:
    """All experiments at one moment: rows of the finished ones, ids of those still open.

    The ledger's position was read before anything that is folded for a row, and a fact that is
    added to a finished experiment is in the ledger after it: so no row can hide a later fact.
    """

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path = path
        self._folder = _folder(path)
        self._ledger = ledger
        self._ids, head = _load(path)
        self._rows = {row.id: row for row in head.rows}  # those that came after the parts
        self._parts = head.parts
        self._open = set(head.open)
        self._tail = 0
        self.catch_up()

    def catch_up(self) -> set[int]:
        """Read on in the ledger; returns the experiments that have to be folded (again)."""
        state = self._ids.ledger
        read = state.position
        concerned = self._ledger.catch_up(state)
        self._tail += state.position - read
        self._open |= concerned
        for number in concerned:
            self._rows.pop(number, None)
        return concerned

    @property
    def problems(self) -> list[str]:
        """The unreadable parts of the ledger."""
        return self._ids.ledger.problems

    @property
    def unfinished(self) -> list[int]:
        """Ids of experiments that have to be folded, ascending, as far as is known: those of a part
        that is gone come as soon as a caller asks for its rows."""
        return sorted(self._open)

    def newest_first(self) -> Iterator[ExperimentRow | int]:
        """All experiments, by id: the rows of finished ones, deleted ones included, and the ids of
        those that have to be folded. Parts are read when their turn comes, and not kept."""
        places = {number // PART for number in (*self._rows, *self._open)} | self._parts.keys()
        for place in sorted(places, reverse=True):
            rows = self._rows_of(place)
            # As they are now: a reader of a row may settle later facts.
            unfinished = {number for number in self._open if number // PART == place}
            for number in reversed(_ids_of(place)):
                if number in rows:
                    yield rows[number]
                elif number in unfinished:
                    yield number

    def settle(self, rows: Iterable[ExperimentRow]) -> None:
        """Take in freshly folded rows, keep those that are final, save the index if it pays."""
        news = {row.id: row for row in rows if is_final(row)}
        self._rows.update(news)
        self._open -= news.keys()
        if news or self._tail >= STALE_AFTER:
            self.save()

    def save(self) -> None:
        """Publish the index; where that is not possible the next reader works a little more."""
        if self._ids.ledger.refused:
            return  # what can't be read now would be left out for good
        try:
            if len(self._rows) >= FOLD_AFTER:
                self._fold()
            self._ids.save(self._folder)
            head = _Rows(list(self._rows.values()), self._parts, self.unfinished)
            fs.replace_file(self._path, line_of(_Ids(self._ids)) + line_of(head))
        except StoreError:
            return
        self._tail = 0

    def _rows_of(self, place: int) -> dict[int, ExperimentRow]:
        """The rows that count of these ids."""
        rows = {row.id: row for row in self._part(place) if row.id not in self._open}
        rows.update((n, self._rows[n]) for n in _ids_of(place) if n in self._rows)
        return rows

    def _part(self, place: int) -> list[ExperimentRow]:
        """A part's rows; the experiments of a part that is gone have to be folded again."""
        if place not in self._parts:
            return []
        part = typed(lines_in(self._folder / self._parts[place], expected=True)[0], _Rows)
        if part is not None:
            return part.rows
        del self._parts[place]
        blocks = self._ids.blocks(self._folder, self._ledger)
        lost = {one.experiment for one in blocks if one.experiment // PART == place}
        self._open |= lost - self._rows.keys()
        return []

    def _fold(self) -> None:
        """Write the parts anew in which something has changed."""
        parts: dict[int, str] = {}
        fs.ensure_directory(self._folder, secret=True)
        for place in sorted({number // PART for number in self._rows}):
            rows = self._rows_of(place)
            line = line_of(_Rows([rows[number] for number in sorted(rows)]))
            parts[place] = f"{place:06d}-{line[:8].decode()}.json"
            fs.replace_file(self._folder / parts[place], line, sync=False)
            self._forget(place, {parts[place], self._parts.get(place)})
        self._parts = self._parts | parts
        self._rows.clear()

    def _forget(self, place: int, needed: set[str | None]) -> None:
        """Remove a part's files that are older than its last one: a process may read the last one
        now, and another listing may publish a newer index."""
        last = self._parts.get(place)
        since = fs.modified(self._folder / last) if last is not None else None
        if since is None:
            return
        for name in fs.names_in(self._folder):
            mine = name.startswith(f"{place:06d}-") and name not in needed
            if mine and (fs.modified(self._folder / name) or since) < since:
                fs.discard(str(self._folder / name))


def is_final(row: ExperimentRow) -> bool:
    """Whether a row is final: its experiment can't change any more, and is understood whole."""
    return row.finished and UNKNOWN not in row.trial_states and not is_newer(row.format)


def ledger_state(path: Path, ledger: Ledger, *, thorough: bool = False) -> LedgerState:
    """The ledger folded to its end, from the index and the tail, with the last of its blocks; saves
    the index when stale. `thorough` as for `FactLog.facts`."""
    return _caught_up(path, ledger, thorough=thorough).ledger


def owner(path: Path, ledger: Ledger, trial_id: int) -> Block | None:
    """The block of the ledger that holds a trial id."""
    return _caught_up(path, ledger).owner(_folder(path), ledger, trial_id)


def _caught_up(path: Path, ledger: Ledger, *, thorough: bool = False) -> TrialIds:
    ids = _ids(lines_in(path))
    known = ids.ledger.position
    ledger.catch_up(ids.ledger, thorough=thorough)
    if ids.ledger.position - known >= STALE_AFTER:
        Catalog(path, ledger).save()
    return ids


def _folder(path: Path) -> Path:
    return path.with_suffix(".parts")


def _ids_of(place: int) -> range:
    return range(place * PART, (place + 1) * PART)


def _load(path: Path) -> tuple[TrialIds, _Rows]:
    lines = lines_in(path)
    head = typed(lines[1], _Rows) if len(lines) > 1 else None
    if head is None:  # what cannot be read is rebuilt
        return TrialIds(), _Rows([])
    return _ids(lines), head


def _ids(lines: list[bytes]) -> TrialIds:
    found = typed(lines[0], _Ids)
    return TrialIds() if found is None else found.ids
