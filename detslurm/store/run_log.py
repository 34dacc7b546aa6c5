"""A run's own log: one writer, opened once, appended to; and how anybody reads it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from detslurm.store import fs
from detslurm.store.errors import TORN, CorruptRecord, Problem, explained
from detslurm.store.frame import block, encode_json, unframe_all

# Past this size `append` writes, so that a caller that never flushes does not run out of memory.
FLUSH_BYTES: Final = 1 << 20
# Records in the page cache are kept here too until they are on disk: this bounds their size.
SYNC_BYTES: Final = 4 << 20
# Records that wait for the same flush share one line up to this size: enough to make its checksum
# cheap, and little to lose where a crash tears it.
BLOCK_BYTES: Final = 16 << 10
LARGEST_LINE: Final = 32 << 20
"""The bytes of the longest line that is read; a hole in a file has none at all."""


class RunLog:
    """The log of one run, written by one process (any of its threads); created when opened.

    Everything since the last fsync stays in memory and is written again at the same place after
    a failure, so a full disk never leaves a torn record before a later one.

    Threads append while another one flushes every few seconds. One lock covers the buffer and the
    file, so that no record is written twice or between the parts of another; it is reentrant, for
    a commit appends and syncs under it.
    """

    def __init__(self, path: str, handle: int, offset: int) -> None:
        self.path = path
        self._handle = handle
        self._block: list[bytes] = []  # records whose line is not made yet
        self._block_size = 0
        self._base = offset  # where _tail belongs in the file
        self._tail = bytearray()  # all that is not known to be on disk
        self._written = 0  # how much of _tail the kernel has taken
        self._retry_at = FLUSH_BYTES
        self._named = False  # whether the file's name is on disk
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: fs.AnyPath) -> RunLog:
        """Open the log for appending; after a torn tail the first record starts a fresh line."""
        name = os.fspath(path)
        try:
            handle = fs.create(name, os.O_RDWR)
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        except OSError as error:
            raise explained(error, name) from error
        log = cls(name, handle, size)
        if torn:
            log._tail += b"\n"
        return log

    @property
    def pending(self) -> int:
        """Bytes that were appended and not yet handed to the file system."""
        return len(self._tail) - self._written + self._block_size

    def append(self, record: Mapping[str, Any]) -> None:
        """Take a record; it is written with the next flush. Never fails for want of space.

        Raises `ValueError` for a record that is too long to be read: none after it would be read.
        """
        raw = encode_json(record)
        if len(raw) > LARGEST_LINE - 2 * BLOCK_BYTES:
            raise ValueError(
                f"a record of {len(raw)} bytes is too long (limit {LARGEST_LINE} bytes): save large"
                " values as a file, such as in a checkpoint"
            )
        with self._lock:
            self._block.append(raw)
            self._block_size += len(raw)
            if self._block_size >= BLOCK_BYTES:
                self._seal()
                if self.pending >= self._retry_at:
                    self._flush_quietly()

    def append_alone(self, record: Mapping[str, Any]) -> None:
        """As `append`, on a line of its own, which readers know that know no blocks."""
        with self._lock:
            self._seal()
            self.append(record)
            self._seal()

    def _seal(self) -> None:
        """Make a line of the records that came since the last line."""
        if self._block:
            self._tail += block(self._block)
            self._block.clear()
            self._block_size = 0

    def _flush_quietly(self) -> None:
        try:
            self.flush()
        except Exception:
            # The record is kept, and the next flush or commit raises. Doubling keeps a full
            # disk from being asked at every record.
            self._retry_at = 2 * self.pending

    def flush(self) -> None:
        """Hand all records to the file system; StoreFull keeps them for the next attempt."""
        with self._lock:
            try:
                self._write_tail()
            except OSError as error:
                raise explained(error, self.path) from error
            self._retry_at = FLUSH_BYTES
            if len(self._tail) >= SYNC_BYTES:
                self.sync()

    def _write_tail(self) -> None:
        self._seal()
        try:
            self._write_from(self._written)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._reopen()
            self._write_from(0)

    def _write_from(self, start: int) -> None:
        self._written = start
        while self._written < len(self._tail):
            # Both views are released even when the call raises: a bytearray with a view
            # on it cannot grow, and the traceback would keep the view alive.
            with memoryview(self._tail) as whole, whole[self._written :] as rest:
                taken = os.pwrite(self._handle, rest, self._base + self._written)
            self._written += taken

    def _reopen(self) -> None:
        fresh = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        stale, self._handle = self._handle, fresh
        fs.close_quietly(stale)

    def sync(self) -> None:
        """Write pending records and wait until all are on disk."""
        with self._lock:
            try:
                self._write_tail()
                os.fsync(self._handle)
            except OSError as error:
                # After a failed fsync the disk's content is unknown: write it all again.
                self._written = 0
                raise explained(error, self.path) from error
            self._base += len(self._tail)
            self._tail.clear()
            self._written = 0
            self._named = self._named or fs.sync_directory(os.path.dirname(self.path))

    def commit(self, record: Mapping[str, Any]) -> None:
        """Append a record that is on disk when this returns; on an error it stays pending."""
        with self._lock:
            self.append_alone(record)
            self.sync()

    def close(self) -> None:
        """Write pending records and let go of the file; after an error it may be tried again."""
        with self._lock:
            if self._handle < 0:
                return
            self.sync()
            handle, self._handle = self._handle, -1
            fs.close_quietly(handle)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LogContent(NamedTuple):
    """Records of a log, the bytes that they and all skipped lines took, and the skipped lines."""

    records: list[dict[str, Any]]
    bytes_seen: int
    problems: list[Problem]


def read_records(path: fs.AnyPath, limit: int | None = None, start: int = 0) -> LogContent:
    """All whole records of a log from byte `start` up to byte `limit`; none where there is no log.

    `bytes_seen` is where to go on: a torn tail is reported and read again once it is whole.
    """
    name = os.fspath(path)
    records: list[dict[str, Any]] = []
    problems: list[Problem] = []
    end = start
    for offset, line in lines_of(name, limit, start, problems):
        end = offset + len(line) + 1
        try:
            records += unframe_all(line)
        except CorruptRecord as error:
            problems.append(Problem(name, offset, str(error)))
    return LogContent(records, end, problems)


def lines_of(
    name: str, limit: int | None, start: int, problems: list[Problem]
) -> Iterator[tuple[int, bytes]]:
    """Each whole line that is not empty with its offset; a torn tail goes to `problems`."""
    rest, place, beyond = b"", start, False
    for piece in _pieces(name, start, problems):
        begin, data = 0, rest + piece
        if limit is not None and place + len(data) > limit:
            data, beyond = data[: max(limit - place, 0)], True
        end = data.find(b"\n", len(rest))
        while end >= 0:
            if end > begin:
                yield place + begin, data[begin:end]
            begin = end + 1
            end = data.find(b"\n", begin)
        rest, place = data[begin:], place + begin
        if beyond:
            return  # bytes beyond the limit are a zombie's, and no fault of the log
        if len(rest) > LARGEST_LINE:
            problems.append(Problem(name, place, f"a line of more than {LARGEST_LINE} bytes"))
            return
    if rest:
        problems.append(Problem(name, place, TORN))


def _pieces(name: str, start: int, problems: list[Problem]) -> Iterator[bytes]:
    try:
        yield from fs.read_pieces(name, start=start)
    except CorruptRecord as error:
        problems.append(Problem(name, start, str(error)))
