"""One MPI process: python -m tests.distributed.mpi_rank [per-node] SCENARIO/SHAPE...

SHAPE is the number of ranks on each node, or `real` for the nodes that there are. Scenarios run one
after the other, each in a context of its own. `per-node`: this process is a node's launcher and
starts its ranks; they inherit its MPI identity.
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


def launch(cases: list[str]) -> int:
    """Start the ranks of this node; the worst of their exit codes."""
    (shape,) = {case.partition("/")[2] for case in cases}
    counts = [int(n) for n in shape.split(",")]
    node = mpi_rank()
    first = sum(counts[:node])
    argv = [sys.executable, "-m", "tests.distributed.mpi_rank", *cases]
    ranks = [
        subprocess.Popen(argv, env=os.environ | {RANK: str(rank)})
        for rank in range(first, first + counts[node])
    ]
    return max(rank.wait() for rank in ranks)


def run(case: str) -> None:
    """Take part in a scenario."""
    scenario, _, shape = case.partition("/")
    dist = context(shape)
    try:
        getattr(scenarios, scenario)(dist)
    finally:
        dist.close()
    uses = "mpi4py" in sys.modules
    who = f"rank={dist.rank} of {dist.size} node={dist.cross_rank} mpi={uses}"
    print(f"done {who} in {case}.", flush=True)


def main() -> int:
    """Run scenarios in this rank, or start this node's ranks."""
    cases = sys.argv[1:]
    if cases[0] == "per-node":
        return launch(cases[1:])
    for case in cases:
        run(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
