"""Free blocks of ports, also when several clusters start at the same moment."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from tests.cluster.spec import Ports

FIRST, LAST, BLOCK = 12_000, 20_000, 100
"""Below Linux's usual ephemeral ports, so that no outgoing connection sits in a block, and below
those of runs (`exec.ports`), which look whether a port is free before the cluster listens."""


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def claim_ports(count: int) -> Iterator[Ports]:
    """A block of `count` free ports, safe from other starters until the block is left.

    An abstract unix socket is the claim: the kernel drops it with its holder. Once the
    controller listens, the block counts as taken without a claim.
    """
    if count > BLOCK:
        raise ValueError(f"{count} ports don't fit into a block of {BLOCK}")
    blocks = range(FIRST, LAST, BLOCK)
    start = os.getpid() % len(blocks)
    for base in [*blocks[start:], *blocks[:start]]:
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0detslurm-cluster-{base}")
            except OSError:
                continue
            if all(_free(port) for port in range(base, base + count)):
                yield Ports(base)
                return
    raise RuntimeError(f"no free block of {count} ports between {FIRST} and {LAST}")
