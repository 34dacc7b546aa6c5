"""Models on several ranks: torch's process group and DistributedDataParallel."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.parallel import DistributedDataParallel

from detslurm.core import DistributedContext


def start_process_group(dist: DistributedContext, device: torch.device, chief_addr: str) -> bool:
    """Connect the ranks by torch.distributed, unless that was done; whether it was done here."""
    if dist.size == 1 or torch_dist.is_initialized():
        return False
    backend = "nccl" if device.type == "cuda" else "gloo"
    if os.environ.get("WORLD_SIZE") == str(dist.size) and "MASTER_ADDR" in os.environ:
        torch_dist.init_process_group(backend)
        return True
    # Started by something that knows nothing of torch (srun, mpirun): the chief names a place.
    address = None
    if dist.rank == 0:
        with socket.create_server(("", 0)) as probe:
            address = f"tcp://{chief_addr}:{probe.getsockname()[1]}"
    address = dist.broadcast(address)
    torch_dist.init_process_group(
        backend, init_method=address, rank=dist.rank, world_size=dist.size
    )
    return True


class Replicated(DistributedDataParallel):  # type: ignore[misc]
    """DDP whose buckets keep their layout from the first batch on.

    Torch lays them out anew after the first batch of every process, in the order in which
    gradients came. With more than two ranks the layout decides in which order numbers are added, so
    a trial that was interrupted would differ in the last bit from one that was not.
    """

    def _build_params_for_reducer(self) -> Any:
        # Gradients come roughly in the reverse order of the parameters.
        parameters, sparse = super()._build_params_for_reducer()
        return parameters[::-1], sparse[::-1]


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with its gradients averaged over all ranks, and its parameters those of rank 0."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    ddp = Replicated(model, device_ids=[device] if device.type == "cuda" else None)
    if hasattr(ddp.reducer, "_push_all_rebuilt_params"):
        ddp.reducer._push_all_rebuilt_params()
        ddp.reducer._rebuild_buckets()
    return ddp


def agree_on_buffers(models: Iterable[nn.Module]) -> None:
    """Give all ranks the chief's buffers, which each has changed by its own batches.

    DDP does that in forward passes. In a validation not every rank has one: they would wait.
    """
    for model in models:
        if isinstance(model, DistributedDataParallel) and model.will_sync_module_buffers():
            model._sync_buffers()
            model.require_forward_param_sync = False  # until the next batch of training


def bare(model: nn.Module) -> nn.Module:
    """The model as the trial made it, without what was wrapped around it."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod  # torch.compile's
        else:
            return model


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor is spread over the ranks (a DTensor, as `fully_shard()` makes them)."""
    module = sys.modules.get("torch.distributed.tensor")  # takes seconds to import
    return module is not None and isinstance(tensor, module.DTensor)


def average_gradients(parameters: Iterable[Any]) -> None:
    """Average gradients over all ranks at once: for backward passes that DDP can't follow."""
    by_kind: dict[Any, list[Any]] = {}
    for parameter in parameters:
        # Those of sharded parameters were averaged by their backward passes.
        if parameter.requires_grad and not is_sharded(parameter):
            if parameter.grad is None:  # another rank may have one, and all must send alike
                parameter.grad = torch.zeros_like(parameter)
            by_kind.setdefault((parameter.dtype, parameter.device), []).append(parameter.grad)
    for gradients in by_kind.values():
        flat = _flatten_dense_tensors(gradients)
        flat /= torch_dist.get_world_size()
        torch_dist.all_reduce(flat)
        for gradient, whole in zip(
            gradients, _unflatten_dense_tensors(flat, gradients), strict=True
        ):
            gradient.copy_(whole)


def compress_gradients(models: Iterable[nn.Module]) -> None:
    """Send gradients as fp16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    for model in models:
        if isinstance(model, DistributedDataParallel) and not model._comm_hooks:
            model.register_comm_hook(None, fp16_compress_hook)
