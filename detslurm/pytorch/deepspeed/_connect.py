"""Connect the ranks the way DeepSpeed wants them: torch's process group, and its own of that."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed.constants import default_pg_timeout
from deepspeed.git_version_info import installed_ops
from deepspeed.ops.op_builder.builder import OpBuilder

from detslurm._base.addresses import LOOPBACK
from detslurm.pytorch._base_context import TrialContext
from detslurm.pytorch._ddp import start_process_group

logger = logging.getLogger("detslurm.pytorch")

_SPARING = '"torch_adam": true in the params of the optimizer uses PyTorch\'s Adam instead. '
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE")
"""Where engines read their rank."""
_SHARED_MEMORY = "deepspeed_shm_comm"
_OLDEST = 0, 19, 8
"""The attempt. Older engines lack the wanted attributes, and change their configuration."""


def connect(context: TrialContext, own_addr: str = LOOPBACK) -> bool:
    """Connect the ranks unless that was done; whether torch's process group was started here.

    Raises `RuntimeError` where DeepSpeed is too old.
    """
    found = deepspeed.__version_major__, deepspeed.__version_minor__, deepspeed.__version_patch__
    if found < _OLDEST:
        raise RuntimeError(
            f"a DeepSpeedTrial needs DeepSpeed {'.'.join(map(str, _OLDEST))} or later, and this is"
            f" {deepspeed.__version__}: install detslurm[deepspeed]"
        )
    dist = context.distributed
    for name, value in zip(
        _VARIABLES, (dist.rank, dist.size, dist.local_rank, dist.local_size), strict=True
    ):
        os.environ.setdefault(name, str(value))  # a launcher has set them already
    # DeepSpeed takes the group as it finds it, so its own setting is followed here.
    timeout = default_pg_timeout if "DEEPSPEED_TIMEOUT" in os.environ else None
    started = start_process_group(dist, context.device, own_addr, alone=True, timeout=timeout)
    if not installed_ops.get(_SHARED_MEMORY):
        # Else DeepSpeed compiles it before the first collective on a CPU: a minute, and a failure
        # where there is no compiler. Training has no use for it.
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False
    if dist.local_rank == 0:
        announce_builds()
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    return started


def announce_builds() -> None:
    """Log which of its kernels DeepSpeed compiles, before the minutes that it takes."""
    load = OpBuilder.jit_load
    if hasattr(load, "__wrapped__"):
        return  # announced already

    @functools.wraps(load)
    def announced(builder: OpBuilder, verbose: bool = True) -> Any:
        from torch.utils.cpp_extension import get_default_build_root

        folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
        if not (folder / builder.name / f"{builder.name}.so").exists():
            logger.warning(
                "DeepSpeed compiles %s now, which may take minutes. Later runs find it in %s. "
                "%sdocs/deepspeed.md describes how to compile nothing in jobs.",
                builder.name,
                folder,
                _SPARING if "adam" in builder.name else "",
            )
        return load(builder, verbose)

    OpBuilder.jit_load = announced


@contextmanager
def restored_environment() -> Iterator[None]:
    """Leave what comes later in this process, and the processes it starts, no rank of this run."""
    missing = [name for name in _VARIABLES if name not in os.environ]
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)
