"""The fast path for objects among all ranks when each is an MPI process.

`ProcessGroup` needs communicators and frames; here the same is done in one exchange of inline
buffers, in as few steps as Python allows: next to MPI's own microsecond every function call counts.
An object that does not fit its buffer takes the general path.
"""

from __future__ import annotations

from collections.abc import Iterable
from pickle import dumps, loads
from typing import Any, Final

from detslurm.core.transports.call_sequence import CallSequence, Op, Scope, code_of
from detslurm.core.transports.health import DistributedError, Health
from detslurm.core.transports.link import Buffer
from detslurm.core.transports.mpi.communicator import MpiCommunicator

_SCOPE: Final = int(Scope.ALL)
_GATHER: Final = int(code_of(Scope.ALL, Op.GATHER))
_ALLGATHER: Final = int(code_of(Scope.ALL, Op.ALLGATHER))
_BROADCAST: Final = int(code_of(Scope.ALL, Op.BROADCAST))


class MpiFastPath:
    """Calls on objects over a communicator whose indexes are the ranks."""

    def __init__(
        self, communicator: MpiCommunicator, sequence: CallSequence, health: Health
    ) -> None:
        self._communicator, self._sequence, self._health = communicator, sequence, health
        self._rank = communicator.index
        self._chiefs, self._others = communicator.buffers.bodies[0], communicator.buffers.others

    def gather(self, stuff: Any) -> list[Any] | None:
        """The chief gets everybody's object by rank, workers get None."""
        body = self._pickled(stuff) if self._rank else b""
        if self._swap(_GATHER, body):  # unpickling ignores what follows an object
            return None if self._rank else [stuff, *map(loads, self._others)]
        found = self._communicator.gather_rest((body,))
        return None if found is None else [stuff, *(loads(parts[0]) for parts in found[1:])]

    def allgather(self, stuff: Any) -> list[Any]:
        """Everybody gets everybody's object by rank."""
        body = self._pickled(stuff)
        bodies: Iterable[Buffer] = self._others
        if not self._swap(_ALLGATHER, body):
            bodies = list(self._communicator.allgather_rest((body,)))
            del bodies[self._rank]
        found = [*map(loads, bodies)]
        found.insert(self._rank, stuff)
        return found

    def broadcast(self, stuff: Any) -> Any:
        """Everybody gets the chief's object."""
        if self._rank == 0:
            body = self._pickled(stuff)
            if not self._swap(_BROADCAST, body):
                self._communicator.broadcast_rest((body,))
            return stuff
        small = self._swap(_BROADCAST, b"")
        return loads(self._chiefs if small else self._communicator.broadcast_rest(None)[0])

    def _pickled(self, stuff: Any) -> bytes:
        try:
            return dumps(stuff, 5)
        except Exception as err:  # the others would wait for what can't be sent
            who = f"rank {self._rank}"
            self._health.fail(f"{who} passed an object that can't be pickled: {err}")
            raise

    def _swap(self, code: int, body: bytes) -> bool:
        # Another thread may find a failure at any time; a failure after this check shows while
        # the rank waits in the exchange.
        if self._health.failure is not None:
            raise DistributedError(self._health.failure)
        self._sequence.begin_as(_SCOPE, code)
        return self._communicator.exchange(1, len(body), body)
