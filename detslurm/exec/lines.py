"""Cut a stream of bytes into lines of text, as they come."""

from __future__ import annotations

from collections.abc import Iterator

# A line without an end must not grow in memory for ever.
_LONGEST = 64 * 1024


class LineSplitter:
    """Feed it chunks, get whole lines; `\\n` ends a line and so does `\\r` (progress bars)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        data = (self._rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = data.split(b"\n")
        yield from lines
        if len(self._rest) > _LONGEST:
            yield from self.close()

    def close(self) -> Iterator[bytes]:
        """What is left without a line end."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield rest
