"""Ranks as threads of one process: each runs the same function with its own context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from detslurm.core import DistributedContext

Result = TypeVar("Result")


class _Group:
    """Ranks that exchange values by meeting twice: all put, then all look."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=20)
        self._values: list[Any] = [None] * size

    def exchange(self, index: int, value: Any) -> list[Any]:
        self._values[index] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class ThreadRank:
    """What the Core API uses of a DistributedContext."""

    def __init__(self, rank: int, nodes: int, world: _Group, node: _Group) -> None:
        self.rank, self.size = rank, len(world._values)
        self.local_size = self.size // nodes
        self.cross_rank, self.local_rank = divmod(rank, self.local_size)
        self.cross_size = nodes
        self._world, self._node = world, node

    def allgather(self, stuff: Any) -> list[Any]:
        return self._world.exchange(self.rank, stuff)

    def gather(self, stuff: Any) -> list[Any] | None:
        everything = self.allgather(stuff)
        return everything if self.rank == 0 else None

    def broadcast(self, stuff: Any) -> Any:
        return self.allgather(stuff)[0]

    def allgather_local(self, stuff: Any) -> list[Any]:
        return self._node.exchange(self.local_rank, stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        everything = self.allgather_local(stuff)
        return everything if self.local_rank == 0 else None

    def broadcast_local(self, stuff: Any = None) -> Any:
        return self.allgather_local(stuff)[0]

    def close(self) -> None:
        pass


def on_ranks(
    size: int, body: Callable[[DistributedContext], Result], nodes: int = 1
) -> list[Result | Exception]:
    """What each rank returned or raised, by rank."""
    world, per_node = _Group(size), [_Group(size // nodes) for _ in range(nodes)]

    def run(rank: int) -> Result | Exception:
        dist = ThreadRank(rank, nodes, world, per_node[rank // (size // nodes)])
        try:
            return body(cast(DistributedContext, dist))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
