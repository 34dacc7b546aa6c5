"""The agent's one loop, and pipes that are written without ever waiting for their reader."""

from __future__ import annotations

import os
import select
import selectors
from collections import deque
from collections.abc import Callable, Iterator

# A pipe that poll calls writable has room for this much: a blocking write of it does not block.
_AT_ONCE = select.PIPE_BUF
# With more than this waiting, the caller should stop adding to it.
_ENOUGH = 256 * 1024

FileEvent = tuple[int, int, Callable[[], object]]
"""A file descriptor, the event to wait for, and the function that handles it."""


class AgentLoop:
    """Waits for files that are of interest always, and for files of the moment."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()  # unlike epoll it takes files, too
        self.sources: list[Callable[[], Iterator[FileEvent]]] = []
        """Each is asked before each wait for its files of the moment."""

    def watch(self, fd: int, handle: Callable[[], object]) -> None:
        """Call `handle` each time the file is readable, until `unwatch`."""
        self._selector.register(fd, selectors.EVENT_READ, handle)

    def unwatch(self, fd: int) -> None:
        """Wait for this file no longer."""
        self._selector.unregister(fd)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._selector.close()

    def wait(self, timeout: float) -> None:
        """Handle the events that are there, or wait for the first event."""
        extra = [event for source in self.sources for event in source()]
        for fd, event, handle in extra:
            self._selector.register(fd, event, handle)
        ready = self._selector.select(timeout)
        for fd, _, _ in extra:
            self._selector.unregister(fd)
        for key, _ in ready:
            key.data()


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
