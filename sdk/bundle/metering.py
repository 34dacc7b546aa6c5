"""How far the reading of a bundle's files has got."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

Progress = Callable[[int, int], None]
"""Gets how many bytes are done, and of how many."""


class ByteMeter:
    """Adds up bytes and reports them."""

    def __init__(self, progress: Progress, whole: int) -> None:
        self._progress, self._done, self._whole = progress, 0, whole

    def add(self, count: int) -> None:
        """Report `count` more bytes as done."""
        self._done += count
        self._progress(self._done, max(self._done, self._whole))


class Metered:
    """A file that reports to a meter what is read of it."""

    def __init__(self, file: IO[bytes], meter: ByteMeter) -> None:
        self._file, self._meter = file, meter

    def read(self, count: int = -1) -> bytes:
        """Read as the file does."""
        data = self._file.read(count)
        self._meter.add(len(data))
        return data
