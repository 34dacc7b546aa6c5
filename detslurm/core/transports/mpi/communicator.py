"""A communicator over MPI: each call begins with a small exchange, in which mistakes show at once.

A process that MPI's launcher sees die ends the whole MPI job; that is how MPI wants it. This
communicator detects a rank that leaves in order while others wait for it, and a rank that died
under a launcher that lets the others live.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from detslurm.core.transports.call_sequence import CallSequence, disagreement
from detslurm.core.transports.health import CHECK_INTERVAL, DistributedError, Health
from detslurm.core.transports.link import Buffer, ControlMessage, Parts, split, table_of
from detslurm.core.transports.mpi.control import MpiControl
from detslurm.core.transports.mpi.inline_buffers import InlineBuffers
from detslurm.core.transports.mpi.local_peers import LocalPeers

_CHUNK: Final = 1 << 28  # MPI counts in ints
_BULK: Final = 71  # tag
# How long to wait at full speed, then letting others run; after that latency no longer counts.
_SPINS: Final = 20
_YIELDING: Final = 0.002

# Requests and buffers of transfers that a failure has cut short. MPI has no safe way to cancel a
# collective request: the library may still write to its memory, which must not be freed or reused.
_abandoned: list[object] = []


class MpiCommunicator:
    """Collective calls over an MPI communicator of its own; index 0 is the root."""

    def __init__(
        self, mpi: Any, comm: Any, names: list[str], sequence: CallSequence, health: Health
    ) -> None:
        self.index: int = comm.Get_rank()
        self.names = names
        self._mpi, self._comm, self._sequence, self._health = mpi, comm, sequence, health
        self.buffers = InlineBuffers(mpi, comm)
        self._local_peers = LocalPeers(comm)
        # A failure can be found by any thread and any communicator of this rank: this one passes it
        # on to its peers, and is asked in turn whenever the rank waits in another communicator.
        self.control = MpiControl(mpi, comm, health)
        health.on_failure(self._send_failure)
        health.checks.append(self._check_peers)

    def gather(self, parts: Parts) -> list[Parts] | None:
        """The root gets everybody's parts by index, workers get None."""
        self._exchange(parts)
        return self.gather_rest(parts)

    def gather_rest(self, parts: Parts) -> list[Parts] | None:
        """The rest of `gather` after the exchange."""
        # From the exchange every rank has everybody's sizes: both sides of each transfer know,
        # without a further message, whether and in how many pieces it takes place.
        sizes = self.buffers.sizes()
        if self.index:
            if sizes[self.index][1] > self.buffers.inline:
                for piece in _pieces(_on_the_wire(parts)):
                    self._finish(self._comm.Isend(self._spec(piece), 0, _BULK), piece)
            return None
        found = [parts]
        for peer, (count, size) in enumerate(sizes[1:], start=1):
            inline = size <= self.buffers.inline
            body = self.buffers.bodies[peer][:size] if inline else self._receive(peer, size)
            found.append(split(count, body))
        return found

    def allgather(self, parts: Parts) -> Parts:
        """Everybody gets everybody's parts by index."""
        self._exchange(parts)
        return self.allgather_rest(parts)

    def allgather_rest(self, parts: Parts) -> Parts:
        """The rest of `allgather` after the exchange."""
        found: list[Any] = []
        for peer, (count, size) in enumerate(self.buffers.sizes()):
            own = _on_the_wire(parts) if peer == self.index else None
            found += split(count, self._broadcast_from(peer, size, own))
        return found

    def broadcast(self, parts: Parts | None) -> Parts:
        """Everybody gets the root's parts."""
        self._exchange(parts or (b"",))
        return self.broadcast_rest(parts)

    def broadcast_rest(self, parts: Parts | None) -> Parts:
        """The rest of `broadcast` after the exchange."""
        count, size = self.buffers.sizes()[0]
        own = None if parts is None else _on_the_wire(parts)
        body = self._broadcast_from(0, size, own)
        return split(count, body) if parts is None else parts

    def close(self) -> None:
        """Leave in order."""
        self.control.close()

    def _exchange(self, parts: Parts) -> None:
        table, size = table_of(parts)
        body = b"".join((table, *parts)) if size <= self.buffers.inline else b""
        self.exchange(len(parts), size, body)

    def exchange(self, count: int, size: int, body: bytes) -> bool:
        """Send this call and its object to all others; whether all objects came inline."""
        sequence, buffers = self._sequence, self.buffers
        call = sequence.serial << 8 | sequence.code
        # Counted before anything is sent: a rank that leaves states how many calls it has finished,
        # and a peer that is in a later one must not wait for it.
        self.control.calls += 1
        try:
            done = buffers.send(call, count, size, body)
        except self._mpi.Exception as err:
            raise self._broken(err) from err
        if not done:
            self._finish(buffers.request, buffers)
        if buffers.all_in(call):
            return True
        # Either the ranks are in different calls, or an object was too large for its buffer.
        self._check(buffers.calls())
        return False

    def _check(self, calls: Sequence[int]) -> None:
        sequence = self._sequence
        for peer, call in enumerate(calls):
            serial, code = call >> 8, call & 255
            if (serial, code) != (sequence.serial, sequence.code):
                theirs = (self.names[peer], code, serial)
                mine = (self.names[self.index], sequence.code, sequence.serial)
                raise self._health.error(disagreement(theirs, mine))

    def _receive(self, peer: int, size: int) -> bytearray:
        body = bytearray(size)
        for piece in _pieces([body]):
            self._finish(self._comm.Irecv(self._spec(piece), peer, _BULK), body)
        return body

    def _broadcast_from(self, root: int, size: int, own: Parts | None) -> Buffer:
        """The root's data, sent inline or broadcast now: `own`, in pieces."""
        if size <= self.buffers.inline:
            return self.buffers.bodies[root][:size]
        body = bytearray(size) if own is None else own[0] if len(own) == 1 else b"".join(own)
        for piece in _pieces([body]):
            self._finish(self._comm.Ibcast(self._spec(piece), root), body)
        return body

    def _spec(self, piece: memoryview) -> list[Any]:
        return [piece, self._mpi.BYTE]

    def _finish(self, request: Any, buffer: object) -> None:
        """Poll: fast at first, then leaving the core to those who have work."""
        # Three phases: most calls complete within microseconds, where even a system call would
        # show; then yielding lets other processes of a crowded node run; a long wait sleeps and
        # checks peers.
        try:
            for _ in range(_SPINS):
                if request.Test():
                    return
            yield_until = time.monotonic() + _YIELDING
            while not request.Test():
                os.sched_yield()
                if time.monotonic() > yield_until:
                    self._wait(request)
                    return
        except BaseException as err:
            # Also for KeyboardInterrupt: whatever ends the call, MPI still owns the buffer, and
            # this rank has not finished the call that was counted when it began.
            _abandoned.append((self, request, buffer))
            self.control.calls -= 1
            if isinstance(err, self._mpi.Exception):
                raise self._broken(err) from err
            if not isinstance(err, DistributedError):
                # The others are in this call and would wait for a rank that has left it.
                who, kind = self.names[self.index], type(err).__name__
                self._health.fail(f"a call of {who} was cut short by {kind}")
            raise

    def _broken(self, err: Exception) -> DistributedError:
        """The error of a library that survives a dead process (ULFM)."""
        self.control.give_up(self._local_peers.dead)
        return self._health.error(f"MPI has lost a rank, which died or can't be reached: {err}")

    def _wait(self, request: Any) -> None:
        began = time.monotonic()
        pause, next_check = 0.00002, 0.0
        while not request.Test():
            waited = time.monotonic() - began
            if waited > next_check or self._health.failure is not None:
                # The root compares the workers' calls with its own: a call that is made on one rank
                # only shows as two ranks that wait for each other in different calls.
                if self.index and waited > CHECK_INTERVAL:
                    self.control.send(ControlMessage.WAITING, self._sequence.call.pack(), peer=0)
                try:
                    self._health.run_checks(self._sequence)
                except DistributedError:
                    # The failure may be another rank's that had finished this call before it died:
                    # then the call has its result here, too, and the next call shows the failure.
                    if request.Test():
                        return
                    raise
                self._check_left()
                next_check = waited + CHECK_INTERVAL
            time.sleep(pause)  # MPI offers no descriptor to block on
            pause = min(pause * 1.1, 0.001)

    def _check_left(self) -> None:
        """A peer that took part in this call may leave while others are still in it."""
        for peer, calls in self.control.left.items():
            if calls < self.control.calls:
                raise self._health.error(f"{self.names[peer]} has left the group")

    def _send_failure(self, reason: str) -> None:
        self.control.send(ControlMessage.ABORT, reason.encode(errors="replace"))

    def _check_peers(self, sequence: CallSequence) -> None:
        # In this order: a peer that ended in order has sent its BYE before it ended, so that every
        # dead process that is seen here has its message among those that are received next.
        dead = self._local_peers.dead()
        self.control.receive_all()
        self._health.check()
        for peer in dead:
            if peer not in self.control.left:
                self.control.give_up(self._local_peers.dead)
                raise self._health.error(f"{self.names[peer]} died")
        if wrong := sequence.find_deadlock(self.control.waiting, self.names, self.index):
            raise self._health.error(wrong)


def _on_the_wire(parts: Parts) -> Parts:
    """The parts that follow the head."""
    return parts if len(parts) == 1 else [table_of(parts)[0], *parts]


def _pieces(parts: Parts) -> list[memoryview]:
    """Views of one body, cut at the same places for sender and receiver."""
    whole = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
    return [whole[i : i + _CHUNK] for i in range(0, len(whole), _CHUNK)]
