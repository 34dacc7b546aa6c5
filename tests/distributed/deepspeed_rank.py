"""One process of deepspeed's own launcher: python -m tests.distributed.deepspeed_rank."""

from __future__ import annotations

from detslurm.core import DistributedContext
from tests.distributed import scenarios

dist = DistributedContext.from_deepspeed()
scenarios.collectives(dist)
print(f"done rank={dist.rank} of {dist.size} node={dist.cross_rank}", flush=True)
dist.close()
