"""Writes the records of a run: cheap for the training loop, on disk within seconds.

A record is encoded where it is reported, so that code may change its dictionaries afterwards;
a background thread brings the buffer to the file system.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base import contract
from detslurm._base.identity import name_on_node
from detslurm.core._retries import keep_trying
from detslurm.core.transports.sockets.link import keep_from_children
from detslurm.store import RunLog, StoreError

if TYPE_CHECKING:
    from detslurm.store.artifacts import Artifact, ArtifactLog

logger = logging.getLogger("detslurm.core")

_FLUSH_EVERY = 2.0
# So long the recorder may take to write the rest. It waits for a store that is away for minutes.
_LEAVING_SECONDS = 300.0

LEAVE = b"leave"
"""The line on a recorder's channel with which the code takes over the run's records."""


_open: dict[tuple[int, Path], Recorder] = {}
_opening = threading.Lock()


CLOSED = "this run has ended: report inside the `with` block of core.init(), or before close()"
_FORKED = "this process is a fork of the process that records the run: only its parent can report"


class Recorder:
    """The one writer of a run's records on this node; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._key = (os.getpid(), path)
        self._users = 0
        self._refusal: str | None = None
        self._sign = _sign_for(path)
        try:
            self._log = RunLog.open(path)
        except BaseException:
            self._sign.close()
            raise
        self._waits = False
        self._artifacts: ArtifactLog | None = None
        self._artifacts_lock = threading.Lock()  # any thread of the code may report
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._flush_now_and_then, daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, path: Path) -> Recorder:
        """The writer of these records; contexts of one process that are open at once share it.

        Raises `RuntimeError` when another process of this node writes them.
        """
        with _opening:
            recorder = _open.get((os.getpid(), path)) or cls(path)
            _open[recorder._key] = recorder
            recorder._users += 1
        return recorder

    @property
    def shared(self) -> bool:
        """Whether another context of this process has it open, too."""
        return self._users > 1

    def refuse(self, why: str) -> None:
        """Raise `RuntimeError` at every report from now on."""
        self._refusal = why

    def record(self, record: Mapping[str, Any]) -> None:
        """Buffer a record."""
        self._check()
        self._log.append(record)
        # Setting takes a lock. Where it is set already, the flush that will clear it comes later.
        if not self._dirty.is_set():
            self._dirty.set()

    def commit(self, record: Mapping[str, Any]) -> None:
        """Write a record and everything before it to the disk before returning.

        Raises `StoreError` where that can't be done for minutes, or the disk is full; the record is
        kept, and is written with the next ones.
        """
        self._check()
        self._log.append_alone(record)
        keep_trying(self._log.sync)
        self._waits = False

    def artifact(self, one: Artifact) -> None:
        """Write an artifact; its record follows, so that readers of the record find it.

        Raises `ValueError` where its step was reported before or it has no room. An artifact that
        the store does not take now waits in memory.
        """
        from detslurm.store.artifacts import ArtifactLog  # only here: most code reports none

        self._check()
        with self._artifacts_lock:
            log = self._artifacts
            if log is None:
                records = self._key[1]
                log = ArtifactLog(records.parent, int(records.stem.partition("-")[2]))
            try:
                log.add(one)
            except (StoreError, OSError) as err:
                logger.warning("artifact %r can't be written now: %s", one.name, err)
            if self._artifacts is None:
                self._artifacts = log
                self.record({"t": "artifacts", "time": one.time})

    def flush(self) -> None:
        """Let readers see everything so far, if the store takes it now."""
        try:
            self._log.flush()
        except StoreError as err:
            # Training goes on and the buffer is kept: the store, or space in it, may come back.
            if not self._waits:
                logger.warning("metrics wait to be written: %s", err)
            self._waits = True
            self._dirty.set()
        else:
            self._waits = False

    def close(self) -> None:
        """Write the buffer out; the last user ends it. Raises the writer's error."""
        with _opening:
            # Below 0 where the code has closed its profiler, which the context then closes again.
            self._users -= 1
            if self._users == 0:
                # Before the log is closed, which may take seconds: a context that begins meanwhile
                # must not share a recorder that takes no more reports.
                del _open[self._key]
        if self._users <= 0:
            self._refusal = self._refusal or CLOSED
        if self._users:
            if self._users > 0:
                self.flush()
            return
        self._closing.set()
        self._dirty.set()
        self._thread.join()
        try:
            if self._artifacts is not None:
                self._close_artifacts(self._artifacts)
            keep_trying(self._log.close)
        finally:
            self._sign.close()

    def _close_artifacts(self, log: ArtifactLog) -> None:
        try:
            log.close()
        except (StoreError, OSError) as err:  # no reason to fail a run
            logger.warning("the last artifacts can't be written: %s", err)

    def _flush_now_and_then(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            self._closing.wait(_FLUSH_EVERY)  # gather what comes meanwhile into one write
            self.flush()

    def _check(self) -> None:
        if self._refusal is not None:
            raise RuntimeError(self._refusal)


def _disown() -> None:
    # The buffer is a copy and the thread that empties it stayed behind; what a child wrote would
    # land on top of the parent's records. Nothing is locked here: a lock may have been held.
    for recorder in list(_open.values()):
        recorder.refuse(_FORKED)


os.register_at_fork(after_in_child=_disown)


class OtherRecords(RuntimeError):
    """Another process of this node records the run."""


def _sign_for(path: Path) -> socket.socket:
    """A name that one process of this node can have; the kernel takes it back at its end."""
    if channel := os.environ.get(contract.RECORD):
        _take_over(Path(channel))
    sign = socket.socket(socket.AF_UNIX)
    keep_from_children(sign)
    try:
        sign.bind(name_on_node(os.environ, f"records {path}"))
    except OSError as err:
        sign.close()
        if err.errno != errno.EADDRINUSE:
            raise
        raise OtherRecords(
            "another process of this run is in core.init() already, and only one can record it:"
            " give core.init() the DistributedContext of all processes, or let this one wait for"
            " the other's end"
        ) from None
    return sign


def _take_over(channel: Path) -> None:
    """Let the recorder of a run with `record` write what it has, and end.

    Its agent removes the channel then.
    """
    is_asked, until = False, time.monotonic() + _LEAVING_SECONDS
    while channel.exists() and time.monotonic() < until:
        is_asked = is_asked or _is_asked_to_leave(channel)
        time.sleep(0.02)  # the end of a process that is not a child: there is nothing to wait on


def _is_asked_to_leave(channel: Path) -> bool:
    try:
        fd = os.open(channel, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(fd, LEAVE + b"\n") > 0
        finally:
            os.close(fd)
    except OSError:
        return False  # the channel is full, or its recorder is about to end


class NullRecorder:
    """Takes records and forgets them: for workers that don't report and unrecorded runs."""

    shared = False

    def __init__(self) -> None:
        self._closed = False

    def record(self, record: Mapping[str, Any]) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)

    def commit(self, record: Mapping[str, Any]) -> None:
        self.record(record)

    def artifact(self, one: Artifact) -> None:
        """The chief's alone count."""
        if self._closed:
            raise RuntimeError(CLOSED)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._closed = True


class WorkerRecorder(NullRecorder):
    """Takes the metrics of a rank other than the chief into a log of its own, which is begun with
    the first of them. It forgets all other records: those are the chief's to write.
    """

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__()
        self._path, self._rank = path, rank
        self._log: Recorder | None = None
        self._failed = False
        self._process = os.getpid()

    def record(self, record: Mapping[str, Any]) -> None:
        super().record(record)
        if record["t"] != "metrics" or self._failed:
            return
        if os.getpid() != self._process:
            raise RuntimeError(_FORKED)
        if self._log is None:
            self._log = self._opened()
        if self._log is not None:
            self._log.record({**record, "rank": self._rank})

    def _opened(self) -> Recorder | None:
        try:
            return keep_trying(lambda: Recorder.of(self._path))
        except StoreError as err:  # metrics of a worker are no reason to end its training
            self._failed = True
            logger.warning("metrics of rank %d can't be recorded: %s", self._rank, err)
            return None

    def flush(self) -> None:
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        super().close()
        log, self._log = self._log, None
        if log is not None:
            log.close()


AnyRecorder = Recorder | NullRecorder
