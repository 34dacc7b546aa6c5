"""One MPI process: python -m tests.distributed.mpi_rank SCENARIO SHAPE [per-node].

SHAPE is the number of ranks on each node, or `real` for the nodes that there are. `per-node`:
this process is a node's launcher and starts its ranks; they inherit its MPI identity.
"""

from __future__ import annotations

import os
import subprocess
import sys

from detslurm.core import DistributedContext
from tests.distributed import scenarios
from tests.distributed.ranks import topologies

RANK = "TEST_RANK"


def mpi_rank() -> int:
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    return int(next(os.environ[name] for name in names if name in os.environ))


def context(shape: str) -> DistributedContext:
    """The context of this rank."""
    if shape == "real":
        return DistributedContext.from_mpi()
    rank = int(os.environ.get(RANK) or mpi_rank())
    topology = topologies([int(n) for n in shape.split(",")])[rank]
    transport = None if RANK in os.environ else "mpi"  # below a launcher it is found out
    return DistributedContext(**topology, chief_ip="127.0.0.1", transport=transport)


def launch(scenario: str, shape: str) -> int:
    """Start the ranks of this node; the worst of their exit codes."""
    counts = [int(n) for n in shape.split(",")]
    node = mpi_rank()
    first = sum(counts[:node])
    argv = [sys.executable, "-m", "tests.distributed.mpi_rank", scenario, shape]
    ranks = [
        subprocess.Popen(argv, env=os.environ | {RANK: str(rank)})
        for rank in range(first, first + counts[node])
    ]
    return max(rank.wait() for rank in ranks)


def main() -> int:
    """Run a scenario in this rank, or start this node's ranks."""
    scenario, shape, *per_node = sys.argv[1:]
    if per_node:
        return launch(scenario, shape)
    dist = context(shape)
    try:
        getattr(scenarios, scenario)(dist)
    finally:
        dist.close()
    uses = "mpi4py" in sys.modules
    print(f"done rank={dist.rank} of {dist.size} node={dist.cross_rank} mpi={uses}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
