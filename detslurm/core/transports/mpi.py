"""A star over MPI: every call begins with one small exchange, in which mistakes show at once.

A process that MPI's launcher sees die ends the whole MPI job; that is how MPI wants it. What is
noticed here is a rank that leaves in order while others wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, Final

from detslurm.core.transports.health import LOOK_EVERY, DistributedError, Health
from detslurm.core.transports.link import HEAD, Parts, Word, head, split
from detslurm.core.transports.mpicontrol import MpiControl
from detslurm.core.transports.order import Ledger, disagreement

# What fits in a slot with its head travels in the exchange itself.
_SLOT: Final = 256
_INLINE: Final = _SLOT - HEAD.size
_CHUNK: Final = 1 << 28  # MPI counts in ints
_BULK: Final = 71  # tag
# How long to wait at full speed, then letting others run; after that it is no latency that counts.
_SPINS: Final = 20
_YIELDING: Final = 0.002

# Buffers of transfers that a failure has cut short: MPI may still touch them.
_abandoned: list[object] = []


class MpiStar:
    """One process's place in a communicator of its own; index 0 is the root."""

    def __init__(
        self, mpi: Any, comm: Any, names: list[str], ledger: Ledger, health: Health
    ) -> None:
        self.index: int = comm.Get_rank()
        self.names = names
        self._mpi, self._comm, self._ledger, self._health = mpi, comm, ledger, health
        self._size = len(names)
        self._slot = bytearray(_SLOT)
        self._slots = memoryview(bytearray(_SLOT * self._size))
        self._out = [self._slot, _SLOT, mpi.BYTE]
        self._in = [self._slots.obj, _SLOT, mpi.BYTE]
        self._bodies = [
            self._slots[_SLOT * i + HEAD.size : _SLOT * (i + 1)] for i in range(self._size)
        ]
        self.control = MpiControl(mpi, comm, health)
        health.on_failure(self._tell_failure)
        health.lookers.append(self._look)

    def gather(self, parts: Parts) -> list[Parts] | None:
        """The root gets everybody's parts by index, workers get None."""
        shapes = self._exchange(parts)
        if self.index:
            if shapes[self.index][1] > _INLINE:
                for piece in _pieces(_body(parts)):
                    self._finish(self._comm.Isend(self._spec(piece), 0, _BULK), piece)
            return None
        found = [parts]
        for peer, (count, size) in enumerate(shapes[1:], start=1):
            inline = size <= _INLINE
            body = self._bodies[peer][:size] if inline else self._receive(peer, size)
            found.append(split(count, body))
        return found

    def allgather(self, parts: Parts) -> Parts:
        """Everybody gets everybody's parts by index."""
        shapes = self._exchange(parts)
        found: list[Any] = []
        for peer, (count, size) in enumerate(shapes):
            if count == 1 and size <= _INLINE:
                found.append(self._bodies[peer][:size])
            elif size <= _INLINE:
                found += split(count, self._bodies[peer][:size])
            else:
                own = _body(parts) if peer == self.index else None
                found += split(count, self._spread(peer, size, own))
        return found

    def broadcast(self, parts: Parts | None) -> Parts:
        """Everybody gets the root's parts."""
        count, size = self._exchange(parts or (b"",))[0]
        own = _body(parts) if parts is not None and size > _INLINE else None
        inline = size <= _INLINE
        body = self._bodies[0][:size] if inline else self._spread(0, size, own)
        return split(count, body) if parts is None else parts

    def close(self) -> None:
        """Leave in peace."""
        self.control.close()

    def _exchange(self, parts: Parts) -> Sequence[tuple[int, int]]:
        """Tell all others this call and what comes with it; (parts, bytes) of each by index."""
        ledger, slot = self._ledger, self._slot
        start, size = head(ledger.code, ledger.serial, parts)
        if len(start) + size <= _SLOT:
            message = start + (parts[0] if len(parts) == 1 else b"".join(parts))
            slot[: len(message)] = message
        else:
            slot[: HEAD.size] = start[: HEAD.size]
        request = self._comm.Iallgather(self._out, self._in)
        if not request.Test():
            self._finish(request, None)
        shapes = []
        for peer in range(self._size):
            code, count, serial, length = HEAD.unpack_from(self._slots, _SLOT * peer)
            if serial != ledger.serial or code != ledger.code:
                theirs = (self.names[peer], code, serial)
                mine = (self.names[self.index], ledger.code, ledger.serial)
                raise self._health.error(disagreement(theirs, mine))
            shapes.append((count, length))
        return shapes

    def _receive(self, peer: int, size: int) -> bytearray:
        body = bytearray(size)
        for piece in _pieces([body]):
            self._finish(self._comm.Irecv(self._spec(piece), peer, _BULK), body)
        return body

    def _spread(self, root: int, size: int, own: Parts | None) -> bytearray:
        """Broadcast `own` of `root`, in pieces; the root keeps a joined copy of several parts."""
        body = bytearray(size) if own is None else bytearray().join(own)
        for piece in _pieces([body]):
            self._finish(self._comm.Ibcast(self._spec(piece), root), body)
        return body

    def _spec(self, piece: memoryview) -> list[Any]:
        return [piece, self._mpi.BYTE]

    def _finish(self, request: Any, buffer: object) -> None:
        """Poll: fast at first, then leaving the core to those who have work."""
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
        except BaseException:
            _abandoned.append((self, request, buffer))
            raise

    def _wait(self, request: Any) -> None:
        began = time.monotonic()
        pause, next_look, left = 0.00002, 0.0, None
        while not request.Test():
            if left is not None:  # it had not taken part before it left, or we would be done
                raise self._health.error(f"{self.names[left]} has left the group")
            waited = time.monotonic() - began
            if waited > next_look or self._health.failure is not None:
                if self.index and waited > LOOK_EVERY:
                    self.control.tell(Word.WAITING, self._ledger.call.pack(), peer=0)
                try:
                    self._health.look(self._ledger)
                except DistributedError:
                    if request.Test():  # all had taken part before it failed
                        return
                    raise
                left = min(self.control.left, default=None)
                next_look = waited + LOOK_EVERY
            time.sleep(pause)
            pause = min(pause * 1.1, 0.001)

    def _tell_failure(self, reason: str) -> None:
        self.control.tell(Word.ABORT, reason.encode())

    def _look(self, ledger: Ledger) -> None:
        self.control.listen()
        self._health.check()
        if wrong := ledger.never_met(self.control.waiting, self.names, self.index):
            raise self._health.error(wrong)


def _body(parts: Parts) -> Parts:
    """What follows the head on the wire."""
    if len(parts) == 1:
        return parts
    start, _ = head(0, 0, parts)
    return [start[HEAD.size :], *parts]


def _pieces(parts: Parts) -> list[memoryview]:
    """Views of one body, cut at the same places for sender and receiver."""
    whole = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
    return [whole[i : i + _CHUNK] for i in range(0, len(whole), _CHUNK)]
