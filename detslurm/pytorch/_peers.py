"""What connects the ranks that train one model: torch.distributed or Horovod."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from detslurm.pytorch._ddp import is_sharded


class Peers(Protocol):
    """The modules `_ddp` and `_horovod` are two of these."""

    AVERAGES_IN_BACKWARD: bool
    """Backward passes leave averages over the ranks, not this rank's own gradients."""
    TAKES_SHARDED: bool
    """Whether models may be split up over the ranks."""

    def replicate(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with the parameters and buffers of rank 0."""

    def compress_gradients(self, models: Iterable[nn.Module]) -> None:
        """Send the gradients of backward passes as fp16."""

    def add_up(self, flat: torch.Tensor) -> None:
        """Let every rank have the sum of what all ranks have."""

    def agree_on_buffers(self, models: Iterable[nn.Module]) -> None:
        """Give all ranks the chief's buffers, which each has changed by its own batches."""


@torch.no_grad()  # type: ignore[untyped-decorator]
def average_gradients(
    parameters: Iterable[Any], peers: Peers, size: int, *, compressed: bool
) -> None:
    """Average gradients over all ranks, all of one type at once.

    The order in which numbers are added depends on the number of ranks alone, so the sums are the
    same to the last bit again.
    """
    by_kind: dict[Any, list[Any]] = {}
    for parameter in parameters:
        # Those of sharded parameters were averaged by their backward passes.
        if parameter.requires_grad and not is_sharded(parameter):
            if parameter.grad is None:  # another rank may have one, and all must send alike
                parameter.grad = torch.zeros_like(parameter)
            by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter.grad)
    for gradients in by_kind.values():
        flat = _flatten_dense_tensors(gradients)
        flat = (flat.half() if compressed else flat).div_(size)
        peers.add_up(flat)
        for gradient, whole in zip(
            gradients, _unflatten_dense_tensors(flat, gradients), strict=True
        ):
            gradient.copy_(whole)
