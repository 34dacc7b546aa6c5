"""`core.shards()`: chunks of work for any number of workers that come and go."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from detslurm.core._retries import keep_trying
from detslurm.store import ChunkQueue, ChunkWorker, FactLog, fs

logger = logging.getLogger("detslurm.core")

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
# With many workers each commits less often: all of them write about one fact a second.
_COMMIT_SECONDS: Final = 10.0


def checked_counts(n_items: int, chunk: int, name: str) -> None:
    """Raises `ValueError` as `Context.shards`."""
    if n_items < 0 or chunk < 1:
        raise ValueError(f"shards({n_items}, {chunk}): n_items is at least 0 and chunk at least 1")
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of shards is a file's name, not {name!r}")


class ShardIterator(Iterator[range]):
    """Hands out chunks to one worker. A chunk is done when the worker asks for the next chunk."""

    def __init__(
        self,
        folder: Path,
        n_items: int,
        chunk: int,
        worker: ChunkWorker,
        *,
        should_leave: Callable[[], bool],
        report_progress: Callable[[float], None],
    ) -> None:
        keep_trying(lambda: fs.ensure_directory(folder))
        self._queue = keep_trying(lambda: ChunkQueue(FactLog(folder), n_items, chunk, worker))
        self._items, self._chunk = n_items, chunk
        self._should_leave, self._report_progress = should_leave, report_progress
        self._claimed: list[int] = []
        self._done: list[int] = []
        self._current: int | None = None
        self._began = self._committed = time.monotonic()
        self._seconds = _COMMIT_SECONDS  # that a chunk takes: the first is claimed alone
        self._over = False

    def __next__(self) -> range:
        self._finish_current()
        if not self._over and self._should_leave():
            self.flush()
            self._over = True
        if not self._over and not self._claimed:
            self._advance(self._most())
            self._over = not self._claimed
            self._note_rest()
        if self._over:
            raise StopIteration
        self._current = number = self._claimed.pop(0)
        self._began = time.monotonic()
        begin = number * self._chunk
        return range(begin, min(begin + self._chunk, self._items))

    def _finish_current(self) -> None:
        if self._current is None:
            return
        now = time.monotonic()
        self._seconds = max((self._seconds + now - self._began) / 2, 1e-3)
        self._done.append(self._current)
        self._current = None
        if now - self._committed >= self._period:
            self.flush()

    @property
    def _period(self) -> float:
        return max(_COMMIT_SECONDS, float(len(self._queue.state.workers)))

    def _most(self) -> int:
        """How many to claim: for the time between commits, and at most half of the rest."""
        state = self._queue.state
        share = (state.count - state.next_fresh) // (2 * max(len(state.workers), 1))
        return max(1, min(int(self._period / self._seconds), share))

    def flush(self) -> None:
        """Commit the chunks that are done; the worker's present chunk is not."""
        if self._done:
            self._advance(0)

    def _advance(self, most: int) -> None:
        self._claimed += keep_trying(lambda: self._queue.advance(self._done, most))
        self._done.clear()
        self._committed = time.monotonic()
        state = self._queue.state
        self._report_progress(len(state.done) / max(state.count, 1))

    def _note_rest(self) -> None:
        state = self._queue.state
        if self._over and (left := state.count - len(state.done)):
            logger.warning(
                "%d of %d chunks are not done: other workers have them. They are handed out again"
                " when it is known that these have ended, or to a worker that starts later",
                left,
                state.count,
            )
