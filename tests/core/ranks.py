"""Ranks as threads of one process: each runs the same function with its own context."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from detslurm.core import DistributedContext
from tests.distributed.ranks import free_port

Result = TypeVar("Result")


def on_ranks(
    size: int, body: Callable[[DistributedContext], Result], nodes: int = 1
) -> list[Result | Exception]:
    """What each rank returned or raised, by rank; several nodes are several groups of threads."""
    port = free_port()
    local_size = size // nodes

    def run(rank: int) -> Result | Exception:
        cross_rank, local_rank = divmod(rank, local_size)
        dist = DistributedContext(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=cross_rank,
            cross_size=nodes,
            chief_ip="127.0.0.1",
            pub_port=port,
        )
        try:
            return body(dist)
        except Exception as error:
            return error
        finally:
            dist.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
