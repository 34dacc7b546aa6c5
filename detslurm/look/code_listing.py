"""The code of an experiment as texts, as far as it is small."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from detslurm.config.secret_texts import PROGRAMS, masked_code
from detslurm.sdk.hiding import hidden
from detslurm.store import CorruptRecord, open_shown

LARGEST: Final = 64 << 10
"""The bytes of the largest file that is listed."""

ALL: Final = 512 << 10
"""The bytes of all files that are listed."""


def code_listing(folder: Path, secrets: Sequence[bytes] = ()) -> dict[str, str]:
    """The text files below a directory by their relative paths, in the order of their names.

    Files that are hidden, large or no UTF-8 are left out, and links are not followed. Asterisks
    replace `secrets`, and those that are written into the code.
    """
    listed: dict[str, str] = {}
    left = ALL
    for path in _files(folder):
        text = _text(path, folder.parent, min(left, LARGEST), secrets)
        if text is not None and len(text.encode()) <= left:
            left -= len(text.encode())
            listed[str(path.relative_to(folder))] = text
    return listed


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_symlink():  # which would lead to a reader's own files
        return
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        yield from (Path(root, name) for name in sorted(names) if not _is_hidden(name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _text(path: Path, experiment: Path, most: int, secrets: Sequence[bytes]) -> str | None:
    try:
        data = _content(path, experiment, most)
        text = None if data is None else hidden(data, secrets).decode()
        if text is not None:
            text = masked_code(text, program=path.suffix in PROGRAMS)
    except (OSError, CorruptRecord, UnicodeDecodeError):
        return None
    return None if text is None or "\0" in text else text


def _content(path: Path, experiment: Path, most: int) -> bytes | None:
    """Read a regular file of at most `most` bytes; None for others: the directory's owner may put a
    pipe or a link there."""
    with open_shown(path, experiment) as file:
        return file.read(most) if os.fstat(file.fileno()).st_size <= most else None
