"""The owners of trial ids: the blocks of the ledger, most of them in files that never change.

Each file has so many blocks in the order of the ledger: each fold of the same ledger writes the
same files. Blocks after the last of them stay with the ledger's state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from detslurm.store import fs
from detslurm.store.ledger import Block, Ledger, LedgerState, owner_of
from detslurm.store.rebuildable import line_of, lines_in, typed

EACH: Final = 2000


class _Blocks(msgspec.Struct):
    blocks: list[Block]


class TrialIds(msgspec.Struct):
    """The fold of the ledger."""

    # Its state, with the blocks that are in no file.
    ledger: LedgerState = msgspec.field(default_factory=LedgerState)
    # The first trial id of each file, and the file's name.
    files: list[tuple[int, str]] = msgspec.field(default_factory=list)

    def owner(self, folder: Path, ledger: Ledger, trial_id: int) -> Block | None:
        """The block that holds a trial id."""
        place = bisect_right(self.files, trial_id, key=lambda file: file[0]) - 1
        last = self.ledger.blocks[0].first if self.ledger.blocks else self.ledger.next_trial
        if place < 0 or trial_id >= last:
            return owner_of(self.ledger.blocks, trial_id)
        blocks = _read(folder / self.files[place][1])
        return owner_of(self.blocks(folder, ledger) if blocks is None else blocks, trial_id)

    def blocks(self, folder: Path, ledger: Ledger) -> Sequence[Block]:
        """All blocks; where a file is gone the ledger is folded again, and the files come back."""
        found: list[Block] = []
        for _, name in self.files:
            blocks = _read(folder / name)
            if blocks is None:
                return self._folded_again(ledger)
            found += blocks
        return found + self.ledger.blocks

    def _folded_again(self, ledger: Ledger) -> list[Block]:
        again = LedgerState()
        ledger.catch_up(again)
        # Facts beyond this position are for the next process that catches up.
        known = self.ledger.next_trial
        self.ledger.blocks = [block for block in again.blocks if block.first < known]
        self.files = []
        return self.ledger.blocks

    def save(self, folder: Path) -> None:
        """Move blocks into files as soon as they fill a file."""
        blocks = self.ledger.blocks
        if len(blocks) >= EACH:
            fs.ensure_directory(folder, secret=True)
        while len(blocks) >= EACH:
            line = line_of(_Blocks(blocks[:EACH]))
            name = f"trials-{blocks[0].first:09d}-{line[:8].decode()}.json"
            fs.replace_file(folder / name, line, sync=False)
            self.files.append((blocks[0].first, name))
            del blocks[:EACH]


def _read(path: Path) -> list[Block] | None:
    found = typed(lines_in(path, expected=True)[0], _Blocks)
    return None if found is None else found.blocks
