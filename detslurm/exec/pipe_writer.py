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
    """Keeps what the pipe does not take yet. The pipe stays as it is: others may share it."""

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
        """Write what the pipe takes now and keep the rest. Raises `OSError` when nobody reads."""
        self._waiting.append(memoryview(data))
        self._size += len(data)
        self.push()

    def push(self) -> None:
        """Write as much of what waits as the pipe takes now. Raises `OSError` as `put` does."""
        while self._waiting and self._poll.poll(0):
            first = self._waiting[0]
            written = os.write(self._fd, first[:_AT_ONCE])
            self._size -= written
            if written == len(first):
                self._waiting.popleft()
            else:
                self._waiting[0] = first[written:]
