"""Contended facts: immutable files numbered 1, 2, 3 ... in one directory.

Facts are committed in the order of their numbers. So a number without a file, although a later one
has a file, is a fact that was lost: a gap, and not the end.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from detslurm.store import fs
from detslurm.store.errors import CorruptRecord, NewerFormat, StoreFault, is_refusal
from detslurm.store.frame import frame, unframe

FORMAT: Final = 1
"""The newest format of decisions that this version knows (docs/formats.md).

A record has the format that a reader must know as its `v`. An experiment has as the `format` of its
first fact the one by whose rules it decides until its end.
"""
REFUSED: Final = "refused"
# Past so many facts the next are read ahead: as many as there were, and so many at most.
_LONG: Final = 64
_MOST: Final = 4096
_RUN: Final = 16  # facts that one thread reads in a row
_THREADS: Final = 16
# A directory with more facts is listed only where as many were read, or a listing is asked for.
_LISTED: Final = 1024
_WHY: Final = os.strerror(errno.EACCES)
_NAME: Final = re.compile(r"\d{6,12}\.json")
# So many facts in a row may be lost: a file with a larger number is none of a log's facts.
_WIDEST: Final = 10_000
MISSING: Final = "it is missing, although later records are there"
"""The problem of a fact that was lost; it reads as a corrupt fact, with `missing` set."""


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

    def facts(
        self, after: int = 0, *, skip_refused: bool = False, thorough: bool = False
    ) -> Iterator[dict[str, Any]]:
        """All facts past number `after`, in order, up to the last that the file server has:
        what follows from them may be for good.

        A fact that was lost comes as a corrupt fact that is `missing`. In a long log of which few
        are read, several lost in a row are found only by a `thorough` reading, which lists all.
        With `skip_refused` a fact that this user may not read comes as a fact of type `REFUSED`.
        """
        number = after + 1
        while True:
            listed = thorough or number <= _LISTED or number - after > _LONG
            fact, later = self._at(number, listed=listed, skip_refused=skip_refused)
            if fact is None:
                if not later:
                    return
                yield from map(self.lost, range(number, later))
                number = later
                continue
            yield fact
            number += 1
            if number - after > _LONG:
                for fact in self._ahead(number, min(number - after, _MOST), skip_refused):
                    yield fact
                    number += 1

    def _at(
        self, number: int, *, listed: bool, skip_refused: bool
    ) -> tuple[dict[str, Any] | None, int]:
        """Fact `number`; where there is none the next number that has a fact, 0 at the end."""
        fact = self._fact(number, expected=not listed, skip_refused=skip_refused)
        if fact is not None:
            return fact, 0
        if not listed:
            return None, number + 1 if fs.exists(self.name(number + 1)) else 0
        # Listed before it is looked up again: listed facts came after fact `number`.
        listed_now = _numbers(fs.names_anew(self.path_text(number)))
        later = [n for n in listed_now if number < n <= number + _WIDEST]
        fact = self._fact(number, expected=False, skip_refused=skip_refused)
        return fact, min(later, default=0)

    def lost(self, number: int) -> dict[str, Any]:
        """Return the record that stands for a lost fact."""
        path = self.path_text(number)
        return {"type": "corrupt", "n": number, "path": path, "problem": MISSING, "missing": True}

    def gaps(self) -> list[int]:
        """The numbers of all facts that were lost."""
        found, last = list[int](), 0
        for number in _in_reach(_numbers(fs.names_in(self.path))):
            found += range(last + 1, number)
            last = number
        return [n for n in found if not fs.exists(self.name(n), expected=True)]

    def last_listed(self) -> int:
        """The largest number of a listing, which may be old; 0 where there is none."""
        # Without a function call for each name: a search has thousands.
        names = sorted(sorted(filter(_NAME.fullmatch, fs.names_in(self.path))), key=len)
        if not names or (last := _number(names[-1])) <= len(names) + _WIDEST:
            return last if names else 0
        return max(_in_reach(_numbers(names)), default=0)

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

    def put_next(self, number: int, record: Mapping[str, Any]) -> bool:
        """As `put`; False also where a later number is taken: a gap is never filled."""
        return self.first_free(number - 1) == number and self.put(number, record)

    def append(self, record: Mapping[str, Any], after: int = 0) -> int:
        """Commit `record` after the last fact and past `after`; return its number."""
        number = self.first_free(after)
        while not self.put(number, record):
            number += 1
        return number

    def first_free(self, after: int) -> int:
        """The first number past `after` and past all facts, as far as this node knows."""
        number = (after if after > _LISTED else max(after, self.last_listed())) + 1
        # Reading skips existing numbers: cheaper than losing a race for each.
        while fs.exists(self.name(number)) or (after > _LISTED and self._is_gap(number)):
            number += 1
        return number

    def _is_gap(self, number: int) -> bool:
        return fs.exists(self.name(number + 1))


def _numbers(names: Iterable[str]) -> list[int]:
    return [_number(name) for name in names if _NAME.fullmatch(name)]


def _in_reach(numbers: Iterable[int]) -> Iterator[int]:
    """The numbers in order, up to a gap that is wider than lost facts may leave."""
    last = 0
    for number in sorted(numbers):
        if number > last + _WIDEST + 1:
            return
        yield number
        last = number


def _number(name: str) -> int:
    return int(name.removesuffix(".json"))


def put_record(path: Path, record: Mapping[str, Any]) -> bool:
    """Put-if-absent of one record as one file."""
    return fs.put_if_absent(path, frame({"v": 1, **record}))


def format_of(record: Mapping[str, Any]) -> int:
    """The format that a reader has to know to decide by a record; 1 where it names none."""
    rules = record.get("format") if record.get("type") == "created" else None
    return max(n for n in (record.get("v"), rules, 1) if isinstance(n, int))


def is_newer(version: int) -> bool:
    """Whether this version doesn't know a format."""
    return version > FORMAT


def refuse_newer(path: fs.AnyPath, version: int) -> None:
    """Raise `NewerFormat` for a format of the records at a path that this version does not know."""
    if is_newer(version):
        raise NewerFormat(path, version)


def read_record(path: fs.AnyPath, *, expected: bool = False) -> dict[str, Any] | None:
    """The one record in a file; a corrupt one reads as type "corrupt" with its "problem", and so
    does a record of a newer format, with its "v"."""
    try:
        data = fs.read_file(path, expected=expected)
        if data is None:
            return None
        record = unframe(data[:-1] if data.endswith(b"\n") else data)
        version = record.get("v", 1)
        if not isinstance(version, int) or not isinstance(record.get("type", ""), str):
            raise CorruptRecord("its schema or its type is of another kind")
        refuse_newer(path, version)
    except NewerFormat as error:
        where = {"path": error.path, "v": error.version}
        return {"type": "corrupt", "problem": error.problem, **where}
    except CorruptRecord as error:
        return {"type": "corrupt", "problem": str(error), "path": os.fspath(path)}
    return record
