"""Models on several ranks that Horovod connects.

Gradients are sent during backward passes, but not by the hooks of `hvd.DistributedOptimizer`: what
Horovod puts together of them depends on timing, and with it, on more than two ranks, the last bits
of the sums; and they count backward passes, which a checkpoint between two steps can't hold. So
Horovod is kept from putting together anything (its "fusion"), and gets large pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

from detslurm.core import DistributedContext
from detslurm.pytorch._data_parallel import SumsByName

AVERAGES_IN_BACKWARD = False
TAKES_SHARDED = False

_FUSION = "HOROVOD_FUSION_THRESHOLD"
_BUCKET = 25 << 20
_MOST = 1 << 30  # numbers sent at once: MPI counts them in 32 bits


_sums: SumsByName | None = None


def connect(slots: int | None) -> DistributedContext:
    """The ranks that a launcher has started. Raises `ValueError` when there aren't `slots`."""
    global _sums
    if not hvd.is_initialized() and os.environ.get("HOROVOD_AUTOTUNE", "0") == "0":
        # Only init() reads it. Autotuning would change it later on.
        wanted = int(os.environ.get(_FUSION) or _BUCKET)
        os.environ[_FUSION] = "0"
        _sums = SumsByName(_begin_sum, wanted)
    hvd.init()
    if slots not in (None, hvd.size()):
        raise ValueError(
            f"USE_HOROVOD is set and the trial has {slots} slots, but Horovod has {hvd.size()}"
            f" process{'es' if hvd.size() > 1 else ''}: start the script with"
            " `python3 -m detslurm.launch.horovod SCRIPT`, and build Horovod with the MPI of that"
            " mpirun or srun (docs/pytorch-reference.md)"
        )
    return DistributedContext.from_horovod(hvd)


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with the parameters and buffers of rank 0."""
    _broadcast([*model.parameters(), *model.buffers()])
    return model


def broadcast_buffers(models: Iterable[nn.Module]) -> None:
    """Give all ranks the chief's buffers, which each has changed by its own batches."""
    _broadcast([buffer for model in models for buffer in model.buffers()])


@torch.no_grad()  # type: ignore[untyped-decorator]
def _broadcast(tensors: list[Any]) -> None:
    by_device: dict[torch.device, list[Any]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor)
    for together in by_device.values():
        flat = torch.cat([_bytes(tensor) for tensor in together])
        for part in flat.split(_MOST):
            hvd.broadcast_(part, root_rank=0, name=f"detslurm.broadcast.{len(part)}")
        for tensor, part in zip(together, flat.split([t.nbytes for t in together]), strict=True):
            # A copy begins where any type may begin.
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def all_reduce_sum(flat: torch.Tensor) -> None:
    """Sum this tensor over all ranks, in place."""
    _begin_sum(flat, f"detslurm.sum.{flat.dtype}.{len(flat)}")()


def _begin_sum(flat: torch.Tensor, name: str) -> Callable[[], None]:
    sent = flat.float() if flat.dtype is torch.bfloat16 else flat  # which Horovod doesn't know
    handles = [
        hvd.allreduce_async_(part, op=hvd.Sum, name=f"{name}.{number}")
        for number, part in enumerate(sent.split(_MOST))
    ]

    def wait() -> None:
        for handle in handles:
            hvd.synchronize(handle)
        if sent is not flat:
            flat.copy_(sent)

    return wait


def sums_by_name() -> SumsByName | None:
    """How to send gradients during backward passes; None where Horovod may put them together."""
    return _sums


def compress_gradients(models: Iterable[nn.Module]) -> None:
    """Backward passes send nothing here."""
