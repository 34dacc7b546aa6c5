"""A copy of a trial's state in the host's memory: training goes on while it is written."""

from __future__ import annotations

import copy
from typing import Any

import torch

from detslurm.pytorch._pytree import TreePath, replaced


class Snapshots:
    """Copies states, each into the memory of the one before: fresh memory takes longer to get than
    to fill."""

    def __init__(self) -> None:
        self._buffers: dict[Any, list[torch.Tensor]] = {}
        self._free: dict[Any, list[torch.Tensor]] = {}

    def begin(self) -> None:
        """Give up all copies so far: they must not be read any more."""
        self._free = {kind: list(buffers) for kind, buffers in self._buffers.items()}

    def take(self, state: Any) -> Any:
        """A copy that training doesn't change; it is kept until the next `begin()`."""
        free = self._free
        seen: dict[Any, torch.Tensor] = {}

        def copied(tree_path: TreePath, tensor: torch.Tensor) -> torch.Tensor:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_sparse:
                return copy.deepcopy(tensor)
            kind = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cuda)
            view = (tensor.device, tensor.data_ptr(), *kind)  # tied weights are one also in a copy
            if view not in seen:
                buffer = free[kind].pop() if free.get(kind) else self._buffer(kind, tensor)
                seen[view] = buffer.copy_(tensor.detach(), non_blocking=True)
            return seen[view]

        whole = replaced(state, copied, copy.deepcopy)
        # Copies from a GPU are queued, not done: the thread must not write data before they arrive,
        # and training must not change tensors before they are copied.
        for device in {view[0] for view in seen if view[0].type == "cuda"}:
            torch.cuda.synchronize(device)
        return whole

    def _buffer(self, kind: Any, like: torch.Tensor) -> torch.Tensor:
        buffer = torch.empty_like(
            like, device="cpu", requires_grad=False, pin_memory=bool(like.is_cuda)
        )
        self._buffers.setdefault(kind, []).append(buffer)
        return buffer
