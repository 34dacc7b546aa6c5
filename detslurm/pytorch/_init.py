"""`pytorch.init()`: connect the ranks, seed them, and give the context of a trial."""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist

from detslurm import core
from detslurm._base import contract
from detslurm._base.addresses import LOOPBACK, own_address
from detslurm._base.info import ClusterInfo
from detslurm.core import DistributedContext, PreemptMode
from detslurm.core._console_log import show_log
from detslurm.core._launched import chief_address
from detslurm.core._unmanaged_job import in_own_script, join_job, on_close
from detslurm.core.transports.choose import mpi_size
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._ddp import start_process_group
from detslurm.pytorch._rng import seed_all

logger = logging.getLogger("detslurm.pytorch")


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """Yield a trial's context, whose ranks are connected; use the Trainer inside the block.

    In a job the configuration and the ranks are the job's, and all ranks are seeded with the
    trial's seed. With USE_HOROVOD=1 in the environment, as `detslurm.launch.horovod` sets it,
    Horovod connects the ranks.

    Args:
        hparams: The hyperparameters; none by default. In a job pass
            `detslurm.get_cluster_info().trial.hparams`: they are not taken from the job.
        exp_conf: The experiment's configuration, outside of jobs and in a batch script of your own;
            none by default.
        distributed: The ranks, outside of jobs and in a batch script of your own; by default those
            that a launcher has started, or this process alone.
        aggregation_frequency: After how many batches gradients are exchanged and applied; 1 by
            default.
        enable_tensorboard_logging: Whether metrics are written to TensorBoard files and these are
            kept with the trial; on by default.

    Raises:
        ValueError: In a job of several slots whose processes no launcher has started.
        InvalidExperimentException: If `aggregation_frequency` is less than 1, or the hyperparameter
            `global_batch_size` is less than the number of slots.
    """
    show_log()
    data_parallel = _horovod() if os.environ.get("USE_HOROVOD") else None
    with joined(distributed, exp_conf) as job:
        context = PyTorchTrialContext(
            **job.of_context(hparams), aggregation_frequency=aggregation_frequency
        )
        context.set_enable_tensorboard_logging(enable_tensorboard_logging)
        optimizations = (job.config or {}).get("optimizations") or {}
        context._average_default = optimizations.get("average_aggregated_gradients", True)
        if data_parallel is not None:
            context._connect_by(data_parallel)
        started = data_parallel is None and start_process_group(
            context.distributed, context.device, job.own_addr
        )
        yield context
        if started:
            end_process_group_at_exit()


def end_process_group_at_exit() -> None:
    """Disconnect the ranks when Python exits: not earlier, for torch can't reliably connect the
    same processes a second time."""
    atexit.register(torch_dist.destroy_process_group)


@dataclass(frozen=True)
class JoinedRun:
    """The parts of a trial's context: in a job, or by hand."""

    core: core.Context
    info: ClusterInfo | None
    config: Mapping[str, Any] | None
    own_addr: str

    def of_context(self, hparams: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments that every kind of context takes."""
        trial = None if self.info is None else self.info.trial
        return {
            "core_context": self.core,
            "trial_seed": None if trial is None else trial.trial_seed,
            "hparams": hparams,
            "slots_per_trial": self.core.distributed.size,
            "num_gpus": torch.cuda.device_count(),
            "exp_conf": self.config,
            "steps_completed": 0 if trial is None else trial._steps_completed,
            "managed_training": trial is not None,
            "debug_enabled": trial is not None and trial._debug,
        }


@contextmanager
def joined(
    distributed: DistributedContext | None, exp_conf: Mapping[str, Any] | None
) -> Iterator[JoinedRun]:
    """Join the job and its ranks, and seed them. By hand the arguments count."""
    info = trial_info()
    dist = ranks_of(info, distributed)
    with core.init(distributed=dist, preempt_mode=PreemptMode.ChiefOnly) as core_context:
        core_context.train._show_nothing()  # the Trainer does
        _warn_of_idle_gpus()
        if info is not None:
            recorded = info.trial._config
            exp_conf = _own_config(recorded, exp_conf or {}) if in_own_script() else recorded
            seed_all(info.trial.trial_seed)
        yield JoinedRun(core_context, info, exp_conf, _own_addr(info, dist))


def _own_config(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """That of an unmanaged script: only the script can name its metric."""
    searcher = {k: v for k, v in recorded["searcher"].items() if k != "metric"}
    return {**recorded, **given, "searcher": searcher | (given.get("searcher") or {})}


def _warn_of_idle_gpus() -> None:
    """Warn that training will be slow where there are GPUs that torch doesn't see."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given not in ("", "-1", "NoDevFiles") and not torch.cuda.is_available():
        logger.warning(
            "CUDA_VISIBLE_DEVICES is %s, but torch sees no GPU: training runs on the CPU. torch is"
            " %s, built for CUDA %s; `nvidia-smi` shows what the driver supports",
            given,
            torch.__version__,
            torch.version.cuda,
        )


def _horovod() -> Any:
    try:
        from detslurm.pytorch import _horovod
    except ImportError as err:
        raise ValueError(
            f"USE_HOROVOD is set, but Horovod can't be used: {err};"
            " docs/pytorch-reference.md explains how to build it for this torch"
        ) from err
    return _horovod


def trial_info() -> ClusterInfo | None:
    """The trial of this job; None outside of jobs."""
    info = join_job()
    return info if info is not None and info.task_type == "TRIAL" else None


def ranks_of(
    info: ClusterInfo | None, given: DistributedContext | None
) -> DistributedContext | None:
    """The ranks of this process's launcher, or the given ranks; None for a single rank."""
    # A process that joined the job by itself is of the user's own step, or of a launcher there: the
    # run knows the nodes, but not how many processes those were asked for.
    if info is None or on_close() is not None:
        return given or _of_environment(os.environ, None)
    met = info._rendezvous_info
    slots = len(info.slot_ids) if met is None else sum(met.container_slot_counts)
    dist = _of_environment(os.environ, slots)
    if dist is None and max(slots, len(info.slot_ids)) > 1:
        raise ValueError(
            "In multi-slot managed cluster training, you must wrap your training script with a"
            " distributed launch layer, such as"
            " `python3 -m detslurm.launch.torch_distributed SCRIPT`"
        )
    return dist


def _of_environment(environ: Mapping[str, str], slots: int | None) -> DistributedContext | None:
    """The ranks that a launcher has started, by its environment; None for a single rank."""
    if environ.get("USE_HOROVOD"):
        dist = _horovod().connect(slots)
        return dist if dist.size > 1 else None
    if "WORLD_SIZE" in environ and "GROUP_RANK" in environ:
        return DistributedContext.from_torch_distributed()
    if "WORLD_SIZE" in environ and "CROSS_RANK" in environ:
        return DistributedContext.from_deepspeed()
    started = mpi_size(environ) or 1
    if started > 1 and slots in (None, started):  # not the one process a node of a job
        return DistributedContext.from_mpi()
    return None


def _own_addr(info: ClusterInfo | None, dist: DistributedContext | None) -> str:
    """The address of this node for the others."""
    if dist is None or dist.cross_size == 1:
        return LOOPBACK
    if info is not None and info._rendezvous_info is not None:
        return info.container_addrs[info.container_rank]
    others = chief_address(None) or ""
    return own_address((socket.gethostname(), others), 0, os.environ.get(contract.INTERFACE))
