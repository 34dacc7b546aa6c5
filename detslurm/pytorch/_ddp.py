"""Models on several ranks: torch's process group and DistributedDataParallel."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.utils import _sync_params_and_buffers
from torch.nn.parallel import DistributedDataParallel

from detslurm._base import contract
from detslurm._base.addresses import in_url, interface_with
from detslurm.core import DistributedContext

AVERAGES_IN_BACKWARD = True
TAKES_SHARDED = True

_BUCKET = 250 << 20  # bytes that DDP itself broadcasts at a time


def start_process_group(
    dist: DistributedContext,
    device: torch.device,
    own_addr: str,
    *,
    alone: bool = False,
    timeout: timedelta | None = None,
) -> bool:
    """Connect the ranks by torch.distributed, unless that was done; whether it was done here.

    With `alone` a single process gets its group, too. Without a `timeout` a collective may take as
    long as torch lets it.
    """
    if torch_dist.is_initialized() or (dist.size == 1 and not alone):
        return False
    if dist.cross_size > 1 and (interface := interface_with(own_addr)):
        # Else gloo takes the address of the host's name, which may lead nowhere but here.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    backend: dict[str, Any] = {"backend": "gloo"}
    if timeout is not None:
        backend["timeout"] = timeout
    if device.type == "cuda":
        # With the device NCCL connects now, so that a fault of its network ends the run
        # here, and a barrier needs no guess about which GPU is whose.
        backend |= {"backend": "nccl", "device_id": device}
    if dist.size == 1:
        torch_dist.init_process_group(**backend, store=torch_dist.HashStore(), rank=0, world_size=1)
        return True
    if os.environ.get("WORLD_SIZE") == str(dist.size) and "MASTER_ADDR" in os.environ:
        torch_dist.init_process_group(**backend)
        return True
    # Started by something that knows nothing of torch (srun, mpirun): the chief names a place.
    address = None
    if dist.rank == 0:
        chief = os.environ.get(contract.CHIEF_IP) or own_addr
        with socket.create_server(("", 0)) as probe:
            address = f"tcp://{in_url(chief)}:{probe.getsockname()[1]}"
    address = dist.broadcast(address)
    torch_dist.init_process_group(
        **backend, init_method=address, rank=dist.rank, world_size=dist.size
    )
    return True


_MADE_AGAIN = ("module", "process_group", "reducer", "logger")  # where DDP is unpickled


class Replicated(DistributedDataParallel):  # type: ignore[misc]
    """DDP that has the attributes of its model, and whose buckets keep their layout.

    Attributes of DDP itself go before; all others are read and set where one slot would, so that
    the model's own code sees them.

    Torch lays them out again after the first batch of every process, in the order in which
    gradients came. With more than two ranks the layout decides in which order numbers are added, so
    a trial that was interrupted would differ in the last bit from an uninterrupted trial.
    """

    was_called = False
    _made = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first_call = self.register_forward_pre_hook(self._note_call)
        self._made = True

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("module")
            if model is None or name.startswith("__"):
                raise
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._has(name):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if self._has(name):
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def _has(self, name: str) -> bool:
        known = name in self.__dict__ or name in _MADE_AGAIN or hasattr(type(self), name)
        return known or not self._made

    def _note_call(self, *_: Any) -> None:
        self.was_called = True
        self._first_call.remove()

    def _build_params_for_reducer(self) -> Any:
        # Gradients come roughly in the reverse order of the parameters.
        parameters, sparse = super()._build_params_for_reducer()
        return parameters[::-1], sparse[::-1]


def replicate(model: nn.Module, device: torch.device) -> nn.Module:
    """The model with its gradients averaged over all ranks, and its parameters those of rank 0."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        _take_from_chief([*model.parameters(), *model.buffers()])
        return model
    ddp = Replicated(model, device_ids=[device] if device.type == "cuda" else None)
    if hasattr(ddp.reducer, "_push_all_rebuilt_params"):
        ddp.reducer._push_all_rebuilt_params()
        ddp.reducer._rebuild_buckets()
    return ddp


def broadcast_buffers(models: Iterable[nn.Module]) -> None:
    """Give all ranks the chief's buffers, which each has changed by its own batches.

    DDP does that in forward passes. In a validation not every rank makes any: they would wait.
    """
    for model in models:
        if isinstance(model, DistributedDataParallel):
            model.require_forward_param_sync = True  # also after batches that only gather gradients
            if model.will_sync_module_buffers():
                model._sync_buffers()
            model.require_forward_param_sync = False  # until the next batch of training
        elif not any(map(is_sharded, model.parameters())):
            _take_from_chief(model.buffers())


def _take_from_chief(tensors: Iterable[torch.Tensor]) -> None:
    own = [tensor.detach() for tensor in tensors]
    _sync_params_and_buffers(torch_dist.group.WORLD, own, _BUCKET, src=0)


def bare(model: nn.Module) -> nn.Module:
    """The model as the trial made it, without its wrappers."""
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


def all_reduce_sum(flat: torch.Tensor) -> None:
    """Sum this tensor over all ranks, in place."""
    torch_dist.all_reduce(flat)


def sums_by_name() -> None:
    """None: a process group's ranks begin collectives in the same order."""


def compress_gradients(models: Iterable[nn.Module]) -> None:
    """Send gradients as fp16."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    for model in models:
        if isinstance(model, DistributedDataParallel) and not model._comm_hooks:
            model.register_comm_hook(None, fp16_compress_hook)
