"""Groups of ranks: python -m tests.distributed.ranks SCENARIO TRANSPORT 2,1 (ranks per node)."""

from __future__ import annotations

import os
import random
import secrets
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from detslurm.core import DistributedContext
from tests.distributed import scenarios

ON_TIME = 120


def topologies(nodes: Sequence[int]) -> list[dict[str, Any]]:
    """The rank arguments of every rank, with so many ranks on each node."""
    size = sum(nodes)
    return [
        {
            "rank": sum(nodes[:node]) + local,
            "size": size,
            "local_rank": local,
            "local_size": count,
            "cross_rank": node,
            "cross_size": len(nodes),
        }
        for node, count in enumerate(nodes)
        for local in range(count)
    ]


def free_port() -> int:
    """A port that nobody holds, nor the next; clusters, runs and clients use others."""
    numbers = random.SystemRandom()  # a trial may have seeded the others, in another process too
    while True:
        port = numbers.randrange(4000, 10000)
        with socket.socket() as this, socket.socket() as following:
            try:
                this.bind(("127.0.0.1", port))
                following.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def in_threads(
    scenario: Callable[[DistributedContext], None], nodes: Sequence[int], **kwargs: Any
) -> None:
    """Run a scenario with every rank a thread of this process; the first error is raised."""
    errors: list[BaseException] = []
    # Other processes may do the same at this moment, and meet at the same address.
    own = {"chief_ip": "127.0.0.1", "_salt": secrets.token_hex(8), **kwargs}

    def work(topology: dict[str, Any]) -> None:
        try:
            dist = DistributedContext(**topology, **own)
            try:
                scenario(dist)
            finally:
                dist.close()
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=work, args=(p,), daemon=True) for p in topologies(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ON_TIME)
        if errors:
            raise errors[0]
        assert not thread.is_alive(), "a rank hangs"


def one_rank(scenario: str, topology: dict[str, Any], transport: str) -> None:
    """Be one rank; exit 1 with a traceback when something is wrong."""
    dist = DistributedContext(**topology, chief_ip="127.0.0.1", transport=transport)
    try:
        getattr(scenarios, scenario)(dist)
    finally:
        dist.close()


def main() -> int:
    """Fork a process for every rank; 1 when one fails."""
    scenario, transport, shape = sys.argv[1:]
    children = {}
    for topology in topologies([int(n) for n in shape.split(",")]):
        if (child := os.fork()) == 0:
            status = 1
            try:
                one_rank(scenario, topology, transport)
                status = 0
            except BaseException:
                print(f"--- rank {topology['rank']}", file=sys.stderr)
                traceback.print_exc()
            os._exit(status)
        children[child] = topology["rank"]
    failed = False
    while children:
        pid, status = os.wait()
        rank = children.pop(pid, None)
        if rank is not None and status and not os.WIFSIGNALED(status):
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
