"""Connect the ranks the way DeepSpeed wants them: torch's process group, and its own of that."""

from __future__ import annotations

import os

import deepspeed
import torch.distributed as torch_dist
from deepspeed.git_version_info import installed_ops

from detslurm._addresses import LOOPBACK
from detslurm.pytorch._base_context import TrialContext
from detslurm.pytorch._ddp import start_process_group

_SHARED_MEMORY = "deepspeed_shm_comm"


def connect(context: TrialContext, own_addr: str = LOOPBACK) -> bool:
    """Connect the ranks unless that was done; whether torch's process group was started here."""
    dist = context.distributed
    if not torch_dist.is_initialized():
        # Engines read these. Of a launcher's own, or of a single process without any.
        for name, value in (
            ("RANK", dist.rank),
            ("WORLD_SIZE", dist.size),
            ("LOCAL_RANK", dist.local_rank),
            ("LOCAL_SIZE", dist.local_size),
        ):
            os.environ.setdefault(name, str(value))
    started = start_process_group(dist, context.device, own_addr, alone=True)
    if not installed_ops.get(_SHARED_MEMORY):
        # Else DeepSpeed compiles it in each process's first collective on a CPU: a minute, and a
        # failure where there is no compiler.
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return started
