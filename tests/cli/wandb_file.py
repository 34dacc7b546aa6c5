"""A run file of W&B: records of its own messages in the framing of LevelDB's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FULL, _FIRST, _LAST = 1, 2, 4


def records(path: Path) -> Iterator[Any]:
    """The file's records."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _messages(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def _messages(data: bytes) -> Iterator[bytes]:
    assert data[:4] == b":W&B"
    place, whole = 7, b""
    while place < len(data):
        room = _BLOCK - place % _BLOCK
        if room < 7:
            place += room
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part = data[place + 7 : place + 7 + size]
        place += 7 + size
        whole = part if kind in (_FULL, _FIRST) else whole + part
        if kind in (_FULL, _LAST):
            yield whole
