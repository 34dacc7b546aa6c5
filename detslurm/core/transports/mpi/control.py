"""Control messages between MPI processes beside the collective calls."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from detslurm.core.transports.call_sequence import Call
from detslurm.core.transports.health import Health, peer_timeout
from detslurm.core.transports.link import LONGEST_TEXT, ControlMessage

_TAG = 73  # apart from those of the collective calls and of bulk transfers


class MpiControl:
    """Control messages, received whenever this rank waits long."""

    def __init__(self, mpi: Any, comm: Any, health: Health) -> None:
        self.waiting: dict[int, Call] = {}
        self.left: dict[int, int] = {}
        """Peer that has left in order -> in how many calls it took part to the end."""
        self.calls = 0
        self._mpi, self._comm, self._health = mpi, comm, health
        # MPI may be initialised for one thread only: others queue their messages for this thread.
        self._thread = threading.get_ident()
        self._queued: list[tuple[ControlMessage, bytes, int | None]] = []
        self._sent: list[tuple[Any, bytes]] = []  # MPI reads a message until its request completes
        self._closed = False
        self._dead: Callable[[], Iterable[int]] = tuple
        # A script that never closes its context still takes leave, at exit: see `close_controls`.
        _open_controls.append(self)

    def send(self, kind: ControlMessage, text: bytes = b"", peer: int | None = None) -> None:
        """Send a message; from another thread it goes out when this rank next waits or closes."""
        # Short enough for MPI's eager protocol, where Isend completes before any rank receives.
        # list.append and pop(0) are atomic, so that a queue between threads needs no lock.
        self._queued.append((kind, text[:LONGEST_TEXT], peer))
        if threading.get_ident() == self._thread:
            self._send_queued()

    def _send_queued(self) -> None:
        own = self._comm.Get_rank()
        while self._queued:
            kind, text, peer = self._queued.pop(0)
            message = bytes([kind]) + text
            others = [i for i in range(self._comm.Get_size()) if i != own]
            for index in others if peer is None else [peer]:
                request = self._comm.Isend([message, self._mpi.BYTE], index, _TAG)
                self._sent.append((request, message))
        # Never waited for: a peer that has died or hangs would hold up this rank's own failure.
        self._sent = [item for item in self._sent if not item[0].Test()]

    def receive_all(self) -> None:
        """Receive all messages that have arrived."""
        self._send_queued()
        status = self._mpi.Status()
        # Improbe takes the message out of the queue: no other thread can receive it in between.
        while (found := self._comm.Improbe(self._mpi.ANY_SOURCE, _TAG, status)) is not None:
            text = bytearray(status.Get_count(self._mpi.BYTE))
            found.Recv([text, self._mpi.BYTE])
            self._handle(status.Get_source(), text[0], bytes(text[1:]))

    def _handle(self, peer: int, kind: int, text: bytes) -> None:
        if kind == ControlMessage.BYE:
            self.left[peer] = int(text)
        elif kind == ControlMessage.ABORT:
            self._health.fail(text.decode(errors="replace"))
        elif kind == ControlMessage.WAITING:
            self.waiting[peer] = Call.unpack(text)

    def give_up(self, dead: Callable[[], Iterable[int]]) -> None:
        """A rank has died: this process can't leave MPI in order any more. `dead` lists them."""
        self._dead = dead
        # MPI_Finalize is a collective: with a dead rank it would not return, so `close_controls`
        # aborts the job instead, but not before the other ranks had their time.
        _broken.append(self)

    def is_over(self) -> bool:
        """Whether MPI has been left already."""
        return bool(self._mpi.Is_finalized())

    def wait_for_survivors(self) -> None:
        """Let the others leave, too, for they may still be saving what can be saved."""
        others = set(range(self._comm.Get_size())) - {self._comm.Get_rank()}
        # Abort kills every process of the job: those that are still saving a checkpoint must first
        # have left, or be known to be dead. A hanging process is not waited for beyond the timeout.
        deadline = time.monotonic() + peer_timeout()
        while others - self.left.keys() - set(self._dead()) and time.monotonic() < deadline:
            try:
                self.receive_all()
            except self._mpi.Exception:  # a message of the dead may be pending; then of the others
                self._comm.Ack_failed()
            time.sleep(0.01)  # MPI offers no descriptor to block on

    def abort(self) -> None:
        """End the whole MPI job."""
        self._mpi.COMM_WORLD.Abort(1)

    def close(self) -> None:
        """Take leave of all peers."""
        if not self._closed:
            self._closed = True
            _open_controls.remove(self)
            # With the number of finished calls: peers that are still in the last one need nothing
            # more from this rank, those in a later one fail at once.
            self.send(ControlMessage.BYE, b"%d" % self.calls)
            self._send_queued()  # `send` only queues where another thread closes


_open_controls: list[MpiControl] = []
_broken: list[MpiControl] = []


def close_controls() -> None:
    """At exit, before mpi4py's own handler, in which MPI_Finalize waits for all ranks."""
    for control in list(_open_controls):
        control.close()
    # After this handler mpi4py calls MPI_Finalize, which would wait for the dead. Abort skips the
    # rest of Python's exit, so that buffers are written out first.
    if _broken and not _broken[0].is_over():
        _broken[0].wait_for_survivors()
        sys.stdout.flush()
        sys.stderr.flush()
        _broken[0].abort()
