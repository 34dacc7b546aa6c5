"""Every rank must make the same calls in the same order: counting them, and spotting mistakes."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Scope(enum.IntEnum):
    """Among whom a call is made; calls of each scope are counted apart."""

    ALL = 0
    LOCAL = 1


class Op(enum.IntEnum):
    """The collective calls."""

    JOIN = 0
    GATHER = 1
    ALLGATHER = 2
    BROADCAST = 3


_PACKED = struct.Struct("<BQQQ")


class Call(NamedTuple):
    """The latest call of a rank: its code, its number in its scope, and all it has begun."""

    code: int
    serial: int
    begun: tuple[int, int]

    @property
    def scope(self) -> Scope:
        return Scope(self.code >> 4)

    def pack(self) -> bytes:
        return _PACKED.pack(self.code, self.serial, *self.begun)

    @classmethod
    def unpack(cls, data: bytes) -> Call:
        code, serial, everywhere, here = _PACKED.unpack(data)
        return cls(code, serial, (everywhere, here))


def code_of(scope: Scope, op: Op) -> int:
    """How a call is named in a frame."""
    return scope << 4 | op


def in_words(code: int, serial: int) -> str:
    """A call as a user knows it."""
    local = "_local" if code >> 4 else ""
    return f"{Op(code & 15).name.lower()}{local}() number {serial}"


def never_meet(mine: Call, theirs: Call) -> bool:
    """Whether two ranks that wait for each other, each in its call, wait for ever.

    `theirs` may be old news: then `mine` has already served it, which its numbers tell.
    """
    if mine.scope == theirs.scope:
        return mine.serial == theirs.serial and mine.code != theirs.code
    not_served = theirs.serial > mine.begun[theirs.scope]
    not_begun = theirs.begun[mine.scope] < mine.serial
    return not_served and not_begun


def disagreement(theirs: tuple[str, int, int], mine: tuple[str, int, int]) -> str:
    """What to tell the user of two ranks (name, code, serial) in different calls."""
    return (
        f"the ranks disagree: {theirs[0]} called {in_words(*theirs[1:])} where {mine[0]} called"
        f" {in_words(*mine[1:])}; every rank must make the same calls in the same order"
    )


class Ledger:
    """Counts the calls of this rank."""

    def __init__(self) -> None:
        self._begun = [0, 0]
        self.code = self.serial = 0

    def begin(self, scope: Scope, op: Op) -> None:
        """This rank makes a call."""
        self.begin_as(int(scope), code_of(scope, op))

    def begin_as(self, scope: int, code: int) -> None:
        """As `begin`, for who has it in plain numbers."""
        begun = self._begun
        begun[scope] = self.serial = begun[scope] + 1
        self.code = code

    def never_met(
        self, waiting: Mapping[int, Call], names: Sequence[str], index: int
    ) -> str | None:
        """What is wrong when a peer that waits for this rank will never be served, else None."""
        for peer, theirs in list(waiting.items()):
            if never_meet(self.call, theirs):
                mine = (names[index], self.code, self.serial)
                return disagreement((names[peer], theirs.code, theirs.serial), mine)
        return None

    @property
    def call(self) -> Call:
        """The latest call of this rank."""
        return Call(self.code, self.serial, (self._begun[0], self._begun[1]))
