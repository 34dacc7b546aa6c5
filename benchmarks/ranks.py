"""Two ranks that time collective calls beside others: python -m benchmarks.ranks mpi|sockets.

Rank 0 prints, as JSON, the seconds a call of each contender in each of many short bursts.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import interleaved
from detslurm.core import DistributedContext

CALLS = 200
BURSTS = 100
SMALL = {"rank": 0, "loss": 0.5}

Call = Callable[[Any], object]


def in_bursts(line_up: Call, contenders: dict[str, Call]) -> dict[str, tuple[float, ...]]:
    """Seconds a call; `line_up` lets both ranks begin a burst together."""

    def burst(call: Call) -> float:
        line_up(None)
        began = time.perf_counter()
        for _ in range(CALLS):
            call(SMALL)
        return (time.perf_counter() - began) / CALLS

    bursts = [lambda call=call: burst(call) for call in contenders.values()]
    rounds = interleaved(*bursts, rounds=BURSTS)
    return {name: one.values for name, one in zip(contenders, rounds, strict=True)}


def over_mpi() -> dict[str, tuple[float, ...]]:
    """Beside mpi4py's calls on objects."""
    dist = DistributedContext.from_mpi()
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    found = in_bursts(
        dist.allgather,
        {
            "allgather": dist.allgather,
            "mpi4py allgather": world.allgather,
            "broadcast": dist.broadcast,
            "mpi4py broadcast": world.bcast,
        },
    )
    dist.close()
    return found if world.rank == 0 else {}


def over_sockets(rank: int) -> dict[str, tuple[float, ...]]:
    """Over local sockets and TCP, beside pyzmq by hand."""
    local, tcp = _context(rank, "local"), _context(rank, "tcp")
    zmq = ByZmq(local)
    found = in_bursts(
        local.allgather,
        {"local": local.allgather, "tcp": tcp.allgather, "pyzmq": zmq.allgather},
    )
    for dist in (zmq, tcp, local):
        dist.close()
    return found


def _context(rank: int, transport: str) -> DistributedContext:
    return DistributedContext(
        rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1,
        transport=transport,
    )  # fmt: skip


class ByZmq:
    """What one writes by hand: workers push to the chief, who publishes to all."""

    def __init__(self, dist: DistributedContext) -> None:
        import zmq

        self._chief = dist.rank == 0
        self._context = zmq.Context()
        kinds = (zmq.PULL, zmq.PUB) if self._chief else (zmq.PUSH, zmq.SUB)
        self._up, self._down = map(self._context.socket, kinds)
        sockets = (self._up, self._down)
        here = [s.bind_to_random_port("tcp://127.0.0.1") for s in sockets] if self._chief else []
        for sock, port in zip(sockets, dist.broadcast(here), strict=True):
            if not self._chief:
                sock.connect(f"tcp://127.0.0.1:{port}")
        self._subscribe(dist)

    def _subscribe(self, dist: DistributedContext) -> None:
        """A subscriber misses what is published before its subscription has arrived."""
        if not self._chief:
            self._down.subscribe(b"")
        while True:
            if self._chief:
                self._down.send(pickle.dumps("hello"))
            heard = self._chief or bool(self._down.poll(10))
            if all(dist.allgather(heard)):
                break
        while not self._chief and self._down.poll(100):
            self._down.recv()

    def allgather(self, stuff: Any) -> Any:
        """Everybody gets everybody's object."""
        if self._chief:
            found = [stuff, pickle.loads(self._up.recv())]
            self._down.send(pickle.dumps(found))
            return found
        self._up.send(pickle.dumps(stuff))
        return pickle.loads(self._down.recv())

    def close(self) -> None:
        """Let go of the sockets."""
        self._context.destroy(linger=0)


def main() -> None:
    """Be one MPI rank, or both ranks of a pair over sockets."""
    if sys.argv[1] == "mpi":
        found = over_mpi()
    else:
        child = os.fork()
        found = over_sockets(0 if child else 1)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    if found:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
