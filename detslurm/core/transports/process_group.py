"""All ranks of a trial: the communicator of this node, and that of the nodes' local chiefs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from detslurm.core.transports.call_sequence import CallSequence, Op, Scope
from detslurm.core.transports.choose import RankTopology
from detslurm.core.transports.health import Health
from detslurm.core.transports.link import Communicator, Parts
from detslurm.core.transports.mpi.communicator import MpiCommunicator
from detslurm.core.transports.mpi.fast_path import MpiFastPath

_TOPOLOGY = struct.Struct("<6q")


class ProcessGroup:
    """Collective calls on bytes, over one or two communicators.

    `local` has the processes of this node, `cross` the local chiefs of the nodes, or with `flat`
    everybody.
    """

    def __init__(
        self,
        topology: RankTopology,
        local: Communicator | None,
        cross: Communicator | None,
        sequence: CallSequence,
        health: Health,
        *,
        flat: bool,
    ) -> None:
        self._topology = topology
        self._local, self._cross, self._flat = local, cross, flat
        # Where everybody is in one communicator, that of the node is not used.
        self._inner = None if flat else local
        self._sequence = sequence
        self._health = health
        self._by_rank: list[int] | None = None  # index in the communicators' order of each rank

    def join(self) -> None:
        """Wait until everybody has joined, and agree on the ranks.

        Raises `DistributedError` when the ranks don't fit together.
        """
        self._begin(Scope.ALL, Op.JOIN)
        rows = self._allgather([_TOPOLOGY.pack(*self._topology)])
        topologies = [RankTopology(*_TOPOLOGY.unpack(row)) for row in rows]
        if problem := why_not_one_group(topologies):
            raise self._health.error(problem)
        # Until here peers are named by their place on nodes: no rank knew those of others.
        self._by_rank = sorted(range(len(topologies)), key=lambda i: topologies[i].rank)
        self._name_peers(topologies)

    def fast_path(self) -> MpiFastPath | None:
        """The fast path for calls among all ranks; None if it does not exist here."""
        if self._flat and isinstance(self._cross, MpiCommunicator):
            return MpiFastPath(self._cross, self._sequence, self._health)
        return None

    def gather(self, scope: Scope, data: bytes) -> Parts | None:
        """The (local) chief gets all by (local) rank, others None."""
        self._begin(scope, Op.GATHER)
        if scope is Scope.LOCAL:
            return _flat(self._local.gather([data])) if self._local else [data]
        return self._in_order(self._gather([data]))

    def allgather(self, scope: Scope, data: bytes) -> Parts:
        """Everybody gets all by (local) rank."""
        self._begin(scope, Op.ALLGATHER)
        if scope is Scope.ALL:
            found = self._in_order(self._allgather([data]))
            assert found is not None
            return found
        return self._local.allgather([data]) if self._local else [data]

    def broadcast(self, scope: Scope, data: bytes | None) -> Parts:
        """Everybody gets the one part of the (local) chief."""
        self._begin(scope, Op.BROADCAST)
        parts = None if data is None else (data,)
        if scope is Scope.ALL:
            return self._broadcast(parts)
        return self._local.broadcast(parts) if self._local else parts or ()

    def fail(self, reason: str) -> None:
        """End the group for everybody."""
        self._health.fail(reason)

    def close(self) -> None:
        """Leave in order."""
        # First: that the others leave, too, while this rank closes is not a failure of the group.
        self._health.close()
        for communicator in (self._cross, self._local):
            if communicator is not None:
                communicator.close()

    def _begin(self, scope: Scope, op: Op) -> None:
        # A failure is final: after it ranks may be in different calls, and no order can be
        # restored.
        self._health.check()
        self._sequence.begin(scope, op)

    def _gather_inside(self, parts: Parts) -> Parts | None:
        return parts if self._inner is None else _flat(self._inner.gather(parts))

    def _gather(self, parts: Parts) -> Parts | None:
        here = self._gather_inside(parts)
        if here is None or self._cross is None:
            return here
        return _flat(self._cross.gather(here))

    def _allgather(self, parts: Parts) -> Parts:
        found = self._gather_inside(parts)
        if found is not None and self._cross is not None:
            found = self._cross.allgather(found)
        if self._inner is not None:
            found = self._inner.broadcast(found)
        assert found is not None
        return found

    def _broadcast(self, parts: Parts | None) -> Parts:
        if self._cross is not None:
            parts = self._cross.broadcast(parts)
        if self._inner is not None:
            parts = self._inner.broadcast(parts)
        assert parts is not None
        return parts

    def _in_order(self, parts: Parts | None) -> Parts | None:
        if parts is None or self._by_rank is None:
            return parts
        return [parts[i] for i in self._by_rank]

    def _name_peers(self, topologies: Sequence[RankTopology]) -> None:
        if self._local is not None:
            here = [p for p in topologies if p.cross_rank == self._topology.cross_rank]
            self._local.names[:] = [f"rank {p.rank}" for p in here]
        if self._cross is not None:
            there = topologies if self._flat else [p for p in topologies if p.local_rank == 0]
            self._cross.names[:] = [f"rank {p.rank}" for p in there]


def why_not_one_group(topologies: Sequence[RankTopology]) -> str | None:
    """Why these processes, listed node by node, are not one group; None if they are."""
    size = len(topologies)
    if wrong := sorted({p.size for p in topologies} - {size}):
        return f"{size} processes have joined, but some expect {wrong[0]} in all"
    if sorted(p.rank for p in topologies) != list(range(size)):
        return f"the ranks of {size} processes are {sorted(p.rank for p in topologies)}"
    if topologies[0].rank != 0:
        return (
            f"rank 0 must be local rank 0 of the first node; that is rank {topologies[0].rank}."
            " With --distribution=arbitrary set SLURM_HOSTFILE to the file of the hosts"
        )
    return None


def _flat(gathered: list[Parts] | None) -> Parts | None:
    return None if gathered is None else [part for parts in gathered for part in parts]
