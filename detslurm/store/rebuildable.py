"""Files that can be made again, of lines that check themselves: a torn line is left aside.

Lines are read typed, because large ones then cost a fraction of plain data.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from detslurm.store import fs
from detslurm.store.errors import CorruptRecord, StoreError
from detslurm.store.frame import checked, frame, has_mark, unframe

T = TypeVar("T")


def load(path: fs.AnyPath, kind: type[T]) -> T | None:
    """The object that `save` has written; None where none is readable."""
    return typed(lines_in(path)[0], kind)


def save(path: fs.AnyPath, content: msgspec.Struct, *, sync: bool = True) -> None:
    """Replace the file; where that is not possible the next reader works a little more."""
    with suppress(StoreError):
        fs.replace_file(path, line_of(content), sync=sync)


def line_of(content: msgspec.Struct) -> bytes:
    """The line that stands for it."""
    return frame(msgspec.to_builtins(content, str_keys=True))


def lines_in(path: fs.AnyPath, *, expected: bool = False) -> list[bytes]:
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
    except (CorruptRecord, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def relocated(path: str, old: str, new: str) -> str:
    """A path as it is since the directory `old` that it may be in is `new`."""
    return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path
