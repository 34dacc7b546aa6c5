"""All ranks of a trial: the star of this node, and the star of the nodes' local chiefs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from detslurm.core.transports.choose import Place
from detslurm.core.transports.health import DistributedError, Health
from detslurm.core.transports.lean import Lean
from detslurm.core.transports.link import AnyStar, Parts
from detslurm.core.transports.mpi import MpiStar
from detslurm.core.transports.order import Ledger, Op, Scope

_PLACE = struct.Struct("<6q")


class Stars(NamedTuple):
    """The stars that a rank is in."""

    local: AnyStar | None
    """The processes of this node."""
    cross: AnyStar | None
    """The local chiefs of the nodes, or with `flat` everybody."""
    flat: bool


class Team:
    """Collective calls on bytes, over one or two stars."""

    def __init__(
        self,
        place: Place,
        stars: Stars,
        ledger: Ledger,
        health: Health,
    ) -> None:
        self._place = place
        self._local, self._cross = stars.local, stars.cross
        # Where everybody is in one star, nothing goes by way of the node's.
        self._inner = None if stars.flat else stars.local
        self._flat = stars.flat
        self._ledger = ledger
        self._health = health
        self._by_rank: list[int] | None = None  # place in the stars' order of each rank

    def join(self) -> None:
        """Wait until everybody is here, and agree on who is who.

        Raises `DistributedError` when the ranks don't fit together.
        """
        self._begin(Scope.ALL, Op.JOIN)
        rows = self._allgather([_PLACE.pack(*self._place)])
        places = [Place(*_PLACE.unpack(row)) for row in rows]
        if problem := why_not_one_team(places):
            raise self._health.error(problem)
        self._by_rank = sorted(range(len(places)), key=lambda i: places[i].rank)
        self._name_peers(places)

    def lean(self) -> Lean | None:
        """The short cut for calls among all ranks, where there is one."""
        if self._flat and isinstance(self._cross, MpiStar):
            return Lean(self._cross, self._ledger, self._health)
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
            return self._spread(parts)
        return self._local.broadcast(parts) if self._local else parts or ()

    def fail(self, reason: str) -> None:
        """End the group for everybody."""
        self._health.fail(reason)

    def close(self) -> None:
        """Leave in peace."""
        self._health.close()
        for star in (self._cross, self._local):
            if star is not None:
                star.close()

    def _begin(self, scope: Scope, op: Op) -> None:
        if self._health.failure is not None:
            raise DistributedError(self._health.failure)
        self._ledger.begin(scope, op)

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

    def _spread(self, parts: Parts | None) -> Parts:
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

    def _name_peers(self, places: Sequence[Place]) -> None:
        if self._local is not None:
            here = [p for p in places if p.cross_rank == self._place.cross_rank]
            self._local.names[:] = [f"rank {p.rank}" for p in here]
        if self._cross is not None:
            there = places if self._flat else [p for p in places if p.local_rank == 0]
            self._cross.names[:] = [f"rank {p.rank}" for p in there]


def why_not_one_team(places: Sequence[Place]) -> str | None:
    """What is wrong with ranks that call themselves so, listed node by node; None if nothing."""
    size = len(places)
    if wrong := sorted({p.size for p in places} - {size}):
        return f"{size} processes have joined, but some were told of {wrong[0]} in all"
    if sorted(p.rank for p in places) != list(range(size)):
        return f"the ranks of {size} processes are {sorted(p.rank for p in places)}"
    if places[0].rank != 0:
        return f"rank 0 must be local rank 0 of the first node; that is rank {places[0].rank}"
    return None


def _flat(gathered: list[Parts] | None) -> Parts | None:
    return None if gathered is None else [part for parts in gathered for part in parts]
