"""Groups of ranks: python -m tests.distributed.ranks SCENARIO/TRANSPORT/2,1... (ranks per node).

Groups run one after the other, those joined by `+` side by side. On each of them a line of JSON:
[the group, what is wrong].
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from detslurm.core import DistributedContext
from tests.distributed import scenarios

ON_TIME = 180
HANG = "did not end in time"


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
    """Be one rank; an exception when something is wrong."""
    dist = DistributedContext(**topology, chief_ip="127.0.0.1", transport=transport)
    try:
        getattr(scenarios, scenario)(dist)
    finally:
        dist.close()


class Group:
    """The ranks of one scenario, each a process that is forked from this one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._output = os.memfd_create(name)
        self._ranks: dict[int, int] = {}
        scenario, transport, shape = name.split("/")
        os.environ["DET_ALLOCATION_ID"] = f"{os.getpid()}.{time.monotonic_ns()}"
        for topology in topologies([int(n) for n in shape.split(",")]):
            if (child := os.fork()) == 0:
                self._be_a_rank(scenario, topology, transport)
            self._ranks[child] = topology["rank"]

    def _be_a_rank(self, scenario: str, topology: dict[str, Any], transport: str) -> NoReturn:
        status = 1
        try:
            os.dup2(self._output, 1)
            os.dup2(self._output, 2)
            one_rank(scenario, topology, transport)
            status = 0
        except BaseException:
            print(f"--- rank {topology['rank']}", file=sys.stderr)
            traceback.print_exc()
        os._exit(status)

    def wait(self, on_time: int) -> str:
        """What is wrong when all ranks have ended, or hang after so many seconds: nothing where one
        was only killed."""
        failed = []
        signal.alarm(on_time)
        try:
            while self._ranks:
                child = next(iter(self._ranks))
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                rank = self._ranks.pop(child)
                if status not in (0, -signal.SIGKILL):
                    failed.append(f"rank {rank} ended with {status}")
        except TimeoutError:
            failed.append(f"ranks {list(self._ranks.values())} {HANG}")
            for child in self._ranks:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        finally:
            signal.alarm(0)
        output = os.pread(self._output, 100_000, 0).decode(errors="replace")
        os.close(self._output)
        return "\n".join([*failed, output]) if failed else ""


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError


def main() -> None:
    """Run groups of ranks."""
    signal.signal(signal.SIGALRM, _too_long)
    on_time = ON_TIME
    for together in sys.argv[1:]:
        for group in [Group(name) for name in together.split("+")]:
            wrong = group.wait(on_time)
            if HANG in wrong:
                on_time = 20  # where all hang, each is to be named before the test's own limit
            print(json.dumps([group.name, wrong]), flush=True)


if __name__ == "__main__":
    main()
