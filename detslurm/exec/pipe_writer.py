"""Write to a pipe without ever waiting for its reader."""

from __future__ import annotations

import os
import select
from collections import deque

# A pipe that poll calls writable has room for this much: a blocking write of it does not block.
_AT_ONCE = select.PIPE_BUF
# With more than this waiting, the caller should stop adding to it.
_ENOUGH = 256 * 1024


class PipeWriter:
    """Keeps what the pipe does not take yet."""

    # Without O_NONBLOCK: that belongs to the open pipe, not to this descriptor, and would change it
    # for every other process that writes to it and expects to block.

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def fileno(self) -> int:
        return self._fd

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        return self._size > _ENOUGH

    def put(self, data: bytes) -> None:
        """Write as much as the pipe takes now, keep the rest. Raises `OSError` without a reader."""
        self._waiting.append(memoryview(data))
        self._size += len(data)
        self.push()

    def push(self) -> None:
        """Write as much of what waits as the pipe takes now. Raises `OSError` as `put` does."""
        # Between poll and write another process may have filled the pipe: then this write waits,
        # as it would in any program. Up to PIPE_BUF bytes are written at once and not mixed.
        while self._waiting and self._poll.poll(0):
            first = self._waiting[0]
            written = os.write(self._fd, first[:_AT_ONCE])
            self._size -= written
            if written == len(first):
                self._waiting.popleft()
            else:
                self._waiting[0] = first[written:]
