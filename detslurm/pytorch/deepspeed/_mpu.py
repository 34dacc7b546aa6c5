"""The ranks that read data and report metrics, where a model is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detslurm.core import DistributedContext

_SLICE_RANKS = (
    "get_slice_parallel_rank",
    "get_tensor_model_parallel_rank",
    "get_model_parallel_rank",
)


@dataclass
class ModelParallelUnit:
    """This rank's place in a training that spreads models over ranks.

    Attributes:
        data_parallel_rank: The number of this rank's replica of the model, from 0.
        data_parallel_world_size: The number of replicas.
        should_report_metrics: Whether metrics of this rank count. One rank of each replica's is
            enough, such as the rank that knows the loss.
        should_build_data_loader: Whether this rank reads data.
    """

    data_parallel_rank: int
    data_parallel_world_size: int
    should_report_metrics: bool
    should_build_data_loader: bool


def make_data_parallel_mpu(dist_context: DistributedContext) -> ModelParallelUnit:
    """Return the place of a rank of `dist_context` that has a whole replica, as with ZeRO."""
    return ModelParallelUnit(dist_context.rank, dist_context.size, True, True)


def make_deepspeed_mpu(mpu: Any) -> ModelParallelUnit:
    """Return the place of a rank by DeepSpeed's own account, or Megatron's.

    The last stage of a pipeline reports metrics, for it knows the loss; the first and the last read
    data.

    Args:
        mpu: The `mpu` of an engine, such as the `PipelineParallelGrid` of a pipeline.
    """
    stage, stages = 0, 1
    if hasattr(mpu, "get_pipe_parallel_rank"):
        stage, stages = mpu.get_pipe_parallel_rank(), mpu.get_pipe_parallel_world_size()
    slice_rank = next((getattr(mpu, name)() for name in _SLICE_RANKS if hasattr(mpu, name)), 0)
    is_last = stage == stages - 1
    return ModelParallelUnit(
        data_parallel_rank=mpu.get_data_parallel_rank(),
        data_parallel_world_size=mpu.get_data_parallel_world_size(),
        should_report_metrics=is_last and slice_rank == 0,
        should_build_data_loader=stage == 0 or is_last,
    )
