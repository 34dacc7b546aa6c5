"""Frames and messages of every transport, and what a communicator does with them."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview
Parts = Sequence[Buffer]


class Frame(NamedTuple):
    """One message of a collective call."""

    code: int
    serial: int
    parts: Parts


class ControlMessage(enum.IntEnum):
    """A rank's messages beside the collective calls."""

    BYE = 1  # I leave in order
    ABORT = 2  # the group has failed, because ...
    WAITING = 3  # I wait for you in this call


LONGEST_TEXT: Final = 1024
"""Bytes of a control message: few enough to be sent at once, whatever the receiver does."""


class Communicator(Protocol):
    """Collective calls of one rank with those it is linked to; index 0 is the root."""

    names: list[str]

    def gather(self, parts: Parts) -> list[Parts] | None:
        """The root gets everybody's parts by index, its own first; workers get None."""

    def allgather(self, parts: Parts) -> Parts:
        """Everybody gets everybody's parts by index."""
        ...

    def broadcast(self, parts: Parts | None) -> Parts:
        """Everybody gets the root's parts."""
        ...

    def close(self) -> None:
        """Leave in order."""


HEAD = struct.Struct("<BxxxIQQ")
"""code, number of parts, serial, bytes that follow."""


def head(code: int, serial: int, parts: Parts) -> tuple[bytes, int]:
    """The head of a frame with the table of its parts' lengths, and the bytes of the parts."""
    table, size = table_of(parts)
    return HEAD.pack(code, len(parts), serial, size) + table, size - len(table)


def table_of(parts: Parts) -> tuple[bytes, int]:
    """The head that lets a receiver separate several parts, and the size of it all."""
    if len(parts) == 1:
        return b"", len(parts[0])
    lengths = [len(part) for part in parts]
    table = struct.pack(f"<{len(parts)}Q", *lengths)
    return table, sum(lengths) + len(table)


def split(count: int, body: Buffer) -> Parts:
    """The parts of a frame's body."""
    if count == 1:
        return (body,)
    lengths = struct.unpack_from(f"<{count}Q", body)
    rest = memoryview(body)[8 * count :]
    parts = []
    start = 0
    for length in lengths:
        parts.append(rest[start : start + length])
        start += length
    return parts
