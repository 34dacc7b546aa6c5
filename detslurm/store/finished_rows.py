"""Rebuildable files with a row for each finished experiment that need not be read again.

The ledger is read before anything that a row is made of, and each change of a finished experiment
is added to the ledger afterwards. So no row hides a later fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from detslurm.store import rebuildable
from detslurm.store.ledger import Ledger, LedgerState

Row = TypeVar("Row")


class _Content(msgspec.Struct):
    ledger: LedgerState = msgspec.field(default_factory=LedgerState)
    rows: dict[int, Any] = msgspec.field(default_factory=dict)
    root: str = ""  # of the store: rows may have paths, and it may have been moved or copied
    schema: int = 0


class FinishedRows(Generic[Row]):
    """The rows in one file, without those of experiments that have changed since.

    Args:
        path: The file, in the root of the store.
        ledger: The store's ledger.
        kind: The type of the rows.
        schema: The version of the rows; a file with another version is ignored.
        thorough: As for `Ledger.catch_up`.
    """

    def __init__(
        self,
        path: Path,
        ledger: Ledger,
        kind: type[Row],
        *,
        schema: int,
        thorough: bool = False,
    ) -> None:
        self._path, self._schema, self._root = path, schema, str(path.parent)
        content = rebuildable.load(path, _Content)
        if content is None or (content.schema, content.root) != (schema, self._root):
            content = _Content()
        self.ledger = content.ledger
        self.rows = _converted(content.rows, kind)
        read = self.ledger.position
        for experiment in ledger.catch_up(self.ledger, thorough=thorough):
            self.rows.pop(experiment, None)
        self.tail = self.ledger.position - read
        """How many facts of the ledger are newer than the file."""

    def save(self) -> None:
        """Replace the file, for the next reader."""
        if not self.ledger.refused:  # else what can't be read now would be left out for good
            content = _Content(self.ledger, dict(self.rows), self._root, self._schema)
            rebuildable.save(self._path, content, sync=False)


def _converted(rows: Mapping[int, Any], kind: type[Row]) -> dict[int, Row]:
    try:
        return {number: msgspec.convert(row, kind) for number, row in rows.items()}
    except msgspec.ValidationError:
        return {}
