"""What connects the ranks that train one model: torch.distributed or Horovod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from detslurm.pytorch._ddp import is_sharded


class DataParallel(Protocol):
    """The modules `_ddp` and `_horovod` are two of these."""

    AVERAGES_IN_BACKWARD: bool
    """Backward passes leave averages over the ranks, not this rank's own gradients."""
    TAKES_SHARDED: bool
    """Whether models may be split up over the ranks."""

    def replicate(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with the parameters and buffers of rank 0."""

    def compress_gradients(self, models: Iterable[nn.Module]) -> None:
        """Send the gradients of backward passes as fp16."""

    def all_reduce_sum(self, flat: torch.Tensor) -> None:
        """Sum this tensor over all ranks, in place."""

    def broadcast_buffers(self, models: Iterable[nn.Module]) -> None:
        """Give all ranks the chief's buffers, which each has changed by its own batches."""


@torch.no_grad()  # type: ignore[untyped-decorator]
def average_gradients(
    parameters: Iterable[Any], data_parallel: DataParallel, size: int, *, compressed: bool
) -> None:
    """Average gradients over all ranks, all of one type at once.

    The order in which numbers are added depends on the number of ranks alone, so the sums are the
    same to the last bit again. What no rank has a gradient of keeps none, as on one slot: zeros
    would let optimizers change it, by momentum or weight decay.
    """
    by_kind: dict[Any, list[Any]] = {}
    for parameter in parameters:
        # Those of sharded parameters were averaged by their backward passes.
        if parameter.requires_grad and not is_sharded(parameter):
            by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for alike in by_kind.values():
        # Another rank may have those that are missing here, and all must send alike.
        sent = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        lacks = any(p.grad is None for p in alike)
        mine = [p.grad is not None for p in alike]
        # Only a rank that lacks one waits for a GPU, to copy from here and to learn of others'.
        sent.append(alike[0].new_tensor(mine) if lacks else alike[0].new_ones(len(alike)))
        flat = _flatten_dense_tensors(sent)
        flat = (flat.half() if compressed else flat).div_(size)
        data_parallel.all_reduce_sum(flat)
        *averages, present = _unflatten_dense_tensors(flat, sent)
        there = present.tolist() if lacks else []
        for index, (parameter, average) in enumerate(zip(alike, averages, strict=True)):
            if parameter.grad is not None:
                parameter.grad.copy_(average)
            elif there[index]:
                parameter.grad = average.to(parameter.dtype).clone()
