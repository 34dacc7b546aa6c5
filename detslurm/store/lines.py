"""Lines of rebuildable files, read typed: large ones cost a fraction of plain data."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from detslurm.store import fs
from detslurm.store.errors import CorruptRecord, StoreError
from detslurm.store.frame import checked, frame, has_mark, unframe

T = TypeVar("T")


def line_of(content: msgspec.Struct) -> bytes:
    """The line that stands for it."""
    return frame(msgspec.to_builtins(content, str_keys=True))


def lines_in(path: Path, *, expected: bool = False) -> list[bytes]:
    """The lines of a file, at least one; an empty line where there is no such file to be read."""
    try:
        return (fs.read_file(path, expected=expected) or b"").split(b"\n")
    except StoreError:
        return [b""]


def typed(line: bytes, kind: type[T]) -> T | None:
    """The content of a line; None where it is unreadable."""
    try:
        raw = checked(line)
        if has_mark(raw):
            return msgspec.convert(unframe(line), kind, str_keys=True)
        return msgspec.json.decode(raw, type=kind)
    except (CorruptRecord, msgspec.DecodeError, UnicodeDecodeError):
        return None
