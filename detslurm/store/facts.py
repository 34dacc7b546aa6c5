"""Contended facts: immutable files numbered 1, 2, 3 ... in one directory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from detslurm.store import fs
from detslurm.store.errors import CorruptRecord, StoreFault, is_refusal
from detslurm.store.frame import frame, unframe

SCHEMA: Final = 1
REFUSED: Final = "refused"
# Past so many facts the next are read ahead: as many as there were, and so many at most.
_LONG: Final = 64
_MOST: Final = 4096
_RUN: Final = 16  # facts that one thread reads in a row
_THREADS: Final = 16
_WHY: Final = os.strerror(errno.EACCES)


class FactLog:
    """A directory of numbered facts, which any number of processes append to without locks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base = str(path)

    def name(self, number: int) -> Path:
        """The exact name of fact `number`."""
        return Path(self.path_text(number))

    def path_text(self, number: int) -> str:
        """The same as text: making paths of it takes longer than reading the fact."""
        return f"{self._base}/{number:06d}.json"

    def read(self, number: int, *, expected: bool = False) -> dict[str, Any] | None:
        """Fact `number` with its number as "n"; None where it does not exist (yet)."""
        record = read_record(self.path_text(number), expected=expected)
        if record is not None:
            record["n"] = number
        return record

    def facts(self, after: int = 0, *, skip_refused: bool = False) -> Iterator[dict[str, Any]]:
        """All facts past number `after`, in order, up to the last one that the file server has:
        what follows from them may be for good.

        With `skip_refused` a fact that this user may not read comes as one of type `REFUSED`.
        """
        number = after + 1
        while (fact := self._fact(number, expected=True, skip_refused=skip_refused)) is not None:
            yield fact
            number += 1
            if number - after > _LONG:
                for fact in self._ahead(number, min(number - after, _MOST), skip_refused):
                    yield fact
                    number += 1

    def _fact(self, number: int, *, expected: bool, skip_refused: bool) -> dict[str, Any] | None:
        try:
            return self.read(number, expected=expected)
        except StoreFault as fault:
            # Where names can't be looked up at all, there would be no end.
            if not (skip_refused and is_refusal(fault) and fs.exists(self.name(number))):
                raise
            return {"type": REFUSED, "n": number, "path": fault.path, "problem": _WHY}

    def _ahead(self, first: int, count: int, skip_refused: bool) -> Iterator[dict[str, Any]]:
        """As many facts as there are of the next `count`, several read at a time: where so many
        came before, more will, and each waits for the file server."""
        from concurrent.futures import ThreadPoolExecutor  # only here: most logs are short

        def read(start: int) -> list[dict[str, Any] | None]:
            numbers = range(start, min(start + _RUN, first + count))
            return [self._fact(n, expected=False, skip_refused=skip_refused) for n in numbers]

        with ThreadPoolExecutor(_THREADS) as pool:
            every = chain.from_iterable(pool.map(read, range(first, first + count, _RUN)))
            for fact in every:
                if fact is None:
                    return
                yield fact

    def put(self, number: int, record: Mapping[str, Any]) -> bool:
        """Make `record` fact `number`; False where that number is taken."""
        return put_record(self.name(number), record)

    def append(self, record: Mapping[str, Any], after: int = 0) -> int:
        """Commit `record` under the first free number past `after`, and return that number."""
        number = after + 1
        # What exists is skipped by reading: cheaper than losing a race for each number.
        while fs.exists(self.name(number)):
            number += 1
        while not self.put(number, record):
            number += 1
        return number


def put_record(path: Path, record: Mapping[str, Any]) -> bool:
    """Put-if-absent of one record as one file."""
    return fs.put_if_absent(path, frame({"v": SCHEMA, **record}))


def read_record(path: fs.AnyPath, *, expected: bool = False) -> dict[str, Any] | None:
    """The one record in a file; a corrupt one reads as type "corrupt" with its "problem"."""
    data = fs.read_file(path, expected=expected)
    if data is None:
        return None
    try:
        record = unframe(data[:-1] if data.endswith(b"\n") else data)
        if record.get("v", SCHEMA) > SCHEMA:
            raise CorruptRecord(f"written by a newer detslurm (schema {record['v']})")
    except CorruptRecord as error:
        return {"type": "corrupt", "problem": str(error), "path": os.fspath(path)}
    return record
