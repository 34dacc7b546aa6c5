"""TensorBoard's event files: records with checksums, each of which is an event in protobuf.

TensorBoard's own writer imports what it can reach of clouds and numpy, thousands of look-ups on a
shared file system for every trial that starts: here an event is encoded in a few lines.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # CRC-32C, bits reversed
_VERSION: Final = b"brain.Event:2"
_numbers = count()


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE: Final = _table()


class EventRecords:
    """A new event file in a directory."""

    def __init__(self, folder: Path) -> None:
        host, now = socket.gethostname(), time.time()
        # The suffix keeps it apart from a file of torch's writer, begun in the same second.
        own = f"{os.getpid()}.{next(_numbers)}.detslurm"
        name = f"events.out.tfevents.{int(now):010d}.{host}.{own}"
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / name).open("wb")
        self._write(_double(1, now) + _bytes(3, _VERSION))

    def add(self, time: float, step: int, points: Iterable[tuple[str, float]]) -> None:
        """Add an event with numbers by tag."""
        values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, v)) for tag, v in points)
        self._write(_double(1, time) + _integer(2, step) + _bytes(5, values))

    def flush(self) -> None:
        """Let readers see all events."""
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


def _checksum(data: bytes) -> bytes:
    """CRC-32C, turned and shifted: checksums of data that has checksums inside are weak."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(value: int) -> Iterator[int]:
    value &= 0xFFFFFFFFFFFFFFFF
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _integer(field: int, value: int) -> bytes:
    return bytes((field << 3, *_varint(value)))


def _double(field: int, value: float) -> bytes:
    return struct.pack("<Bd", field << 3 | 1, value)


def _float(field: int, value: float) -> bytes:
    try:
        return struct.pack("<Bf", field << 3 | 5, value)
    except OverflowError:  # more than 32 bits hold
        return struct.pack("<Bf", field << 3 | 5, math.copysign(math.inf, value))


def _bytes(field: int, value: bytes) -> bytes:
    return bytes((field << 3 | 2, *_varint(len(value)))) + value
