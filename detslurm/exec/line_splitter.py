"""Cut a stream of bytes into lines of text, as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

LONGEST = 64 * 1024
"""A line without an end must not grow in memory without bound: longer ones come in pieces."""

# Seconds between two states of a line that is rewritten; its last state always counts.
_EVERY = 1.0
_END = rb"([\r\n])"
_UP = b"\x1b[A"  # how tqdm goes from a nested bar back to the one above
_BLANK = rb"(?:\s|\x1b\[[0-9;]*[A-Za-z])*"
_TITLE = rb"\D*"


class LineSplitter:
    """Feed it chunks, get whole lines.

    Text that ends in a `\\r` is a state that the next overwrites, as a progress bar does: of these
    `feed` and `overdue` give at most one a second, and always the last. Where each line counts,
    as in what agents send, nothing is taken for a rewrite.
    """

    def __init__(
        self,
        longest: int = LONGEST,
        clock: Callable[[], float] = time.monotonic,
        *,
        rewrites: bool = True,
    ) -> None:
        self._longest, self._clock, self._rewrites = longest, clock, rewrites
        self._rest = b""
        self._begin()
        self._above = 0  # how many lines above the last one the cursor is

    def _begin(self) -> None:
        """A line that nothing has overwritten yet."""
        self._rewriting = False
        self._state = self._sent = b""
        self._since: float | None = None  # when the first state came that was not sent

    def has_pending(self) -> bool:
        """Whether `overdue` will have something to give."""
        return self._since is not None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that this chunk completes."""
        data = self._rest + chunk
        if self._rewrites and (self._rewriting or self._above or b"\r" in data or b"\x1b" in data):
            *parts, self._rest = re.split(_END, data)
            for text, end in zip(parts[::2], parts[1::2], strict=True):
                yield from self._part(text, end)
            if self._rewriting and not _is_blank(self._rest):
                self._wait()
        else:
            *lines, self._rest = data.split(b"\n")
            for line in lines:
                yield from self._pieces(line)
        if len(self._rest) > self._longest:
            *full, self._rest = self._pieces(self._rest)
            yield from full

    def overdue(self) -> Iterator[bytes]:
        """The present state of a line that is being rewritten, once a second."""
        yield from self._due(self._state if _is_blank(self._rest) else _without_ups(self._rest)[0])

    def close(self) -> Iterator[bytes]:
        """The rest without a line end."""
        rest, self._rest, self._above = self._rest, b"", 0
        if self._rewrites:  # a terminal would move up over the lines of others
            rest, _ = _without_ups(rest)
        if rest or self._state:
            yield from self._ended(rest)

    def _part(self, text: bytes, end: bytes) -> Iterator[bytes]:
        text, ups = _without_ups(text)
        self._above += ups
        if end == b"\n" and not self._above:
            yield from self._ended(text)
            return
        if end == b"\n":
            self._above -= 1  # down to a line that is there already
        self._rewriting = True
        if not _is_blank(text):
            self._state = text
            self._wait()
        yield from self._due(self._state)

    def _wait(self) -> None:
        if self._since is None:
            self._since = self._clock()

    def _due(self, state: bytes) -> Iterator[bytes]:
        if self._since is not None and self._clock() >= self._since + _EVERY:
            self._since, self._state = None, b""
            if state != self._sent:
                self._sent = state
                yield from self._pieces(state)

    def _ended(self, text: bytes) -> Iterator[bytes]:
        """A line is complete; what it has overwritten counts only if it was something else."""
        state, sent, rewriting = self._state, self._sent, self._rewriting
        self._begin()
        if rewriting and _is_blank(text):
            text = state or sent
        elif state and _title(state) != _title(text):
            yield from self._pieces(state)
        if not (rewriting and text and text == sent):
            yield from self._pieces(text)

    def _pieces(self, line: bytes) -> Iterator[bytes]:
        while len(line) > self._longest:
            cut = _between_characters(line, self._longest)
            yield line[:cut]
            line = line[cut:]
        yield line


def _is_blank(text: bytes) -> bool:
    return re.fullmatch(_BLANK, text) is not None


def _without_ups(text: bytes) -> tuple[bytes, int]:
    """The text without the ways up at its end, and how many they were."""
    count, end = 0, len(text)
    while text.endswith(_UP, 0, end):
        count, end = count + 1, end - len(_UP)
    return text[:end], count


def _title(state: bytes) -> bytes:
    """The common part of one progress bar's states: all before the first number."""
    found = re.match(_TITLE, state)
    return found.group().strip() if found else b""


def _between_characters(data: bytes, place: int) -> int:
    """At most `place`, and within no UTF-8 sequence."""
    for cut in range(place, place - 4, -1):
        if data[cut] & 0xC0 != 0x80:
            return cut
    return place
