"""Writes the records of a run: cheap for the training loop, on disk within seconds.

A record is encoded where it is reported, so that code may change its dictionaries afterwards;
a background thread brings the buffer to the file system.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detslurm.store import RunLog, StoreError, StoreFull

logger = logging.getLogger("detslurm.core")

_FLUSH_EVERY = 2.0


class Recorder:
    """The one writer of a run's records in this process; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._log = RunLog.open(path)
        self._error: StoreError | None = None
        self._full = False
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._flush_now_and_then, daemon=True)
        self._thread.start()

    def record(self, record: Mapping[str, Any]) -> None:
        """Buffer a record. Raises the error of an earlier write, once."""
        self._raise_pending()
        self._log.append(record)
        self._dirty.set()

    def commit(self, record: Mapping[str, Any]) -> None:
        """Write a record and everything before it to the disk before returning."""
        self._raise_pending()
        self._log.commit(record)

    def flush(self) -> None:
        """Let readers see everything so far. Raises what went wrong while writing."""
        self._flush()
        self._raise_pending()

    def close(self) -> None:
        """Write out what is buffered. Raises what went wrong while writing."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._dirty.set()
        self._thread.join()
        self._raise_pending()
        self._log.close()

    def _flush_now_and_then(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            self._closing.wait(_FLUSH_EVERY)  # gather what comes meanwhile into one write
            self._flush()

    def _flush(self) -> None:
        try:
            self._log.flush()
        except StoreFull as err:
            # Training goes on and the buffer is kept: space or quota may come back.
            if not self._full:
                logger.warning("metrics wait for space: %s", err)
            self._full = True
        except StoreError as err:
            self._error = err
        else:
            self._full = False

    def _raise_pending(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class NullRecorder:
    """Takes records and forgets them: for workers that don't report and untracked runs."""

    def record(self, record: Mapping[str, Any]) -> None:
        pass

    def commit(self, record: Mapping[str, Any]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


AnyRecorder = Recorder | NullRecorder
