"""`deepspeed.init()`: connect the ranks, seed them, and give the context of a trial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detslurm._base import contract
from detslurm.core import DistributedContext
from detslurm.core._console_log import show_log
from detslurm.pytorch._init import end_process_group_at_exit, joined
from detslurm.pytorch.deepspeed._connect import connect, restored_environment
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._memory import explaining_lack_of_memory


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    enable_tensorboard_logging: bool = True,
) -> Iterator[DeepSpeedTrialContext]:
    """Yield a trial's context, whose ranks are connected; use the Trainer inside the block.

    In a job the configuration and the ranks are the job's, and all ranks are seeded with the
    trial's seed. With `DET_MANUAL_INIT_DISTRIBUTED` in the environment the script calls
    `deepspeed.init_distributed()` itself.

    Args:
        hparams: The hyperparameters; none by default. In a job pass
            `detslurm.get_cluster_info().trial.hparams`: they are not taken from the job.
        exp_conf: The experiment's configuration, outside of jobs and in a batch script of your own;
            none by default.
        distributed: The ranks, outside of jobs and in a batch script of your own; by default those
            that a launcher has started, or this process alone.
        enable_tensorboard_logging: Whether metrics are written to TensorBoard files and these are
            kept with the trial; on by default.

    Raises:
        ValueError: In a job of several slots whose processes no launcher has started.
        RuntimeError: If DeepSpeed is older than 0.19.8.
        InvalidHP: If memory runs out before the trial's first batch is trained.
    """
    show_log()
    with joined(distributed, exp_conf) as job, restored_environment():
        context = DeepSpeedTrialContext(**job.of_context(hparams))
        context.set_enable_tensorboard_logging(enable_tensorboard_logging)
        started = not os.environ.get(contract.MANUAL_INIT) and connect(context, job.own_addr)
        with explaining_lack_of_memory(context):
            yield context
        if started:
            end_process_group_at_exit()
