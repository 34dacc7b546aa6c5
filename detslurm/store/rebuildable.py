"""Files that can be made again: a whole file is used, a torn file left aside."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.frame import frame, unframe

Content = TypeVar("Content", bound=msgspec.Struct)


def load(path: fs.AnyPath, kind: type[Content]) -> Content | None:
    """The object that `save` has written; None where none is readable."""
    try:
        line = (fs.read_file(path) or b"").rstrip(b"\n")
        return msgspec.convert(unframe(line), kind, str_keys=True)
    except (StoreError, msgspec.ValidationError):
        return None


def save(path: fs.AnyPath, content: msgspec.Struct, *, sync: bool = True) -> None:
    """Replace the file; where that is not possible the next reader works a little more."""
    with suppress(StoreError):
        fs.replace_file(path, frame(msgspec.to_builtins(content)), sync=sync)
