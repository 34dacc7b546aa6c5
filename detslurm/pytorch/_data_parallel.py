"""Connects the ranks that train one model: torch.distributed or Horovod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from detslurm.pytorch._ddp import is_sharded


@dataclass(frozen=True)
class SumsByName:
    """Sums that ranks may begin in any order, for they join by a name."""

    begin: Callable[[torch.Tensor, str], Callable[[], None]]
    """Begins to sum a tensor over all ranks, in place; what it returns waits for the end."""
    bucket_bytes: int
    """How much is worth a sum of its own."""


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

    def sums_by_name(self) -> SumsByName | None:
        """How to send gradients during backward passes that are not averaged by these."""

    def broadcast_buffers(self, models: Iterable[nn.Module]) -> None:
        """Give all ranks the chief's buffers, which each has changed by its own batches."""


def average_gradients(
    parameters: Iterable[Any], data_parallel: DataParallel, size: int, *, compressed: bool
) -> None:
    """Average gradients over all ranks, all of one type at once.

    The order in which numbers are added depends on the number of ranks alone, so the sums are the
    same to the last bit again. Parameters without a gradient on any rank keep none, as on one slot:
    zeros would let optimizers change them, by momentum or weight decay.
    """
    by_kind: dict[Any, list[Any]] = {}
    for parameter in parameters:
        # Those of sharded parameters were averaged by their backward passes.
        if parameter.requires_grad and not is_sharded(parameter):
            by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    for alike in by_kind.values():
        gradients = FlatGradients(alike, size, compressed=compressed)
        data_parallel.all_reduce_sum(gradients.sent)
        gradients.put_back()


class FlatGradients:
    """This rank's part of the average of some gradients, in one piece: `sent` is to be summed."""

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __init__(self, alike: Sequence[Any], size: int, *, compressed: bool) -> None:
        self._alike = alike
        # Another rank may have those that are missing here, and all must send alike.
        pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        self._lacks = any(p.grad is None for p in alike)
        mine = [p.grad is not None for p in alike]
        # Only a rank that lacks one waits for a GPU, to copy from here and to learn of others'.
        pieces.append(alike[0].new_tensor(mine) if self._lacks else alike[0].new_ones(len(alike)))
        flat = _flatten_dense_tensors(pieces)
        self._pieces = pieces
        self.sent = (flat.half() if compressed else flat).div_(size)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def put_back(self) -> None:
        """Replace gradients by the averages; what no rank has a gradient of keeps none."""
        *averages, present = _unflatten_dense_tensors(self.sent, self._pieces)
        there = present.tolist() if self._lacks else []
        for index, (parameter, average) in enumerate(zip(self._alike, averages, strict=True)):
            if parameter.grad is not None:
                parameter.grad.copy_(average)
            elif there[index]:
                parameter.grad = average.to(parameter.dtype).clone()
