"""One MPI process with as much of Horovod's documented interface as tells ranks and sizes.

Horovod itself is built from source for minutes; mpi4py answers here in its place.
"""

from __future__ import annotations

from mpi4py import MPI

from detslurm.core import DistributedContext
from tests.distributed import scenarios


class Horovod:
    """`horovod.torch` after `hvd.init()`."""

    def __init__(self) -> None:
        world = MPI.COMM_WORLD
        here = world.Split_type(MPI.COMM_TYPE_SHARED)
        across = world.Split(here.rank)
        self.rank, self.size = world.Get_rank, world.Get_size
        self.local_rank, self.local_size = here.Get_rank, here.Get_size
        self.cross_rank, self.cross_size = across.Get_rank, across.Get_size


if __name__ == "__main__":
    dist = DistributedContext.from_horovod(Horovod())
    scenarios.collectives(dist)
    print(f"done rank={dist.rank} of {dist.size} node={dist.cross_rank} mpi=True", flush=True)
    dist.close()
