"""One of Horovod's processes: python -m tests.distributed.horovod_rank, by mpirun or horovodrun."""

from __future__ import annotations

import horovod.torch as hvd

from detslurm.core import DistributedContext
from tests.distributed import scenarios

if __name__ == "__main__":
    hvd.init()
    dist = DistributedContext.from_horovod(hvd)
    scenarios.collectives(dist)
    print(f"done rank={dist.rank} of {dist.size} node={dist.cross_rank}", flush=True)
    dist.close()
