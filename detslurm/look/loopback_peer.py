"""Finds the user at the other end of a connection to this machine's loopback address."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9  # the columns of these tables


def loopback_user(connection: socket.socket) -> int | None:
    """Return the user id of the process that has opened the other end of an IPv4 connection; None
    where the kernel does not show it, or the other end is closed already."""
    try:
        here, there = connection.getsockname(), connection.getpeername()
    except OSError:  # it has gone again
        return None
    # A socket of IPv6 reaches the same address, by another name.
    for table, prefix in zip(_TABLES, ("", "::ffff:"), strict=True):
        ends = tuple(f"{_words(prefix + host)}:{port:04X}" for host, port in (there, here))
        for row in _rows(table):
            # Without an inode no process holds it, and the user that stands there is not its.
            if (row[_LOCAL], row[_REMOTE]) == ends and row[_INODE] != "0":
                return int(row[_USER])
    return None


def _words(host: str) -> str:
    """An address as these tables have it: words of 32 bits in the order of this machine's bytes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    yield from (row for row in map(str.split, lines) if len(row) > _INODE)
