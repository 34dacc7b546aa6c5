"""Every rank must make the same calls in the same order: counting them, and spotting mistakes."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Scope(enum.IntEnum):
    """Among which ranks a call is made; calls of each scope are counted apart."""

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
    """The code of a call in a frame."""
    return scope << 4 | op


def describe_call(code: int, serial: int) -> str:
    """A call as its user writes it."""
    local = "_local" if code >> 4 else ""
    return f"{Op(code & 15).name.lower()}{local}() number {serial}"


def is_deadlock(mine: Call, theirs: Call) -> bool:
    """Whether two ranks that wait for each other, each in its call, are deadlocked.

    `theirs` may be outdated: then `mine` has already served it, which its numbers show.
    """
    # In one scope a rank that is behind will come; calls of the same number and different kinds
    # (gather, broadcast) never meet.
    if mine.scope == theirs.scope:
        return mine.serial == theirs.serial and mine.code != theirs.code
    # In different scopes both are right to wait if one of them only has to come to the other's
    # call: deadlocked are ranks of which neither has yet begun the call that the other waits in.
    not_served = theirs.serial > mine.begun[theirs.scope]
    not_begun = theirs.begun[mine.scope] < mine.serial
    return not_served and not_begun


def disagreement(theirs: tuple[str, int, int], mine: tuple[str, int, int]) -> str:
    """The message about two ranks (name, code, serial) in different calls."""
    return (
        f"the ranks disagree: {theirs[0]} called {describe_call(*theirs[1:])} where {mine[0]}"
        f" called {describe_call(*mine[1:])}; every rank must make the same calls in the same order"
    )


class CallSequence:
    """Counts the calls of this rank."""

    def __init__(self) -> None:
        self._begun = [0, 0]
        self.code = self.serial = 0

    def begin(self, scope: Scope, op: Op) -> None:
        """This rank makes a call."""
        self.begin_as(int(scope), code_of(scope, op))

    def begin_as(self, scope: int, code: int) -> None:
        """As `begin`, in plain numbers."""
        begun = self._begun
        begun[scope] = self.serial = begun[scope] + 1
        self.code = code

    def find_deadlock(
        self, waiting: Mapping[int, Call], names: Sequence[str], index: int
    ) -> str | None:
        """The message about a peer that waits for this rank in vain, else None."""
        # A copy: the thread of the failure detector adds to it at any time.
        for peer, theirs in list(waiting.items()):
            if is_deadlock(self.call, theirs):
                mine = (names[index], self.code, self.serial)
                return disagreement((names[peer], theirs.code, theirs.serial), mine)
        return None

    @property
    def call(self) -> Call:
        """The latest call of this rank."""
        return Call(self.code, self.serial, (self._begun[0], self._begun[1]))
