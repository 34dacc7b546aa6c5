"""State that is spread over the ranks: of models that `fully_shard()` or DTensors split up.

In a checkpoint `state_dict.pth` has a tensor without contents (of the meta device) at the place of
each such tensor; all ranks write the contents to `sharded/`. There any number of ranks finds its
parts of them, also a single one without shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._ddp import bare, is_sharded
from detslurm.pytorch._pytree import TreePath, replaced

FOLDER = "sharded"

State = dict[str, Any]


def split(state: State) -> tuple[State, dict[str, torch.Tensor]]:
    """The state without the contents of sharded tensors, and these tensors by name."""
    parts: dict[str, torch.Tensor] = {}

    def without(tree_path: TreePath, tensor: torch.Tensor) -> torch.Tensor:
        if not is_sharded(tensor):
            return tensor
        parts[_name(tree_path)] = tensor.detach()
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    return replaced(state, without), parts


def write(path: Path, parts: dict[str, torch.Tensor]) -> None:
    """Write sharded tensors into a checkpoint's directory; a collective of all ranks."""
    from detslurm.pytorch.checkpointing import _dcp

    _dcp.write(path / FOLDER, parts)


def joined(state: State, path: Path, context: PyTorchTrialContext) -> State:
    """The state of a checkpoint as this trial needs it: with contents, split up as its models are.

    A collective if there is anything in `sharded/`.
    """
    likes = dict(_likes(context))
    wanted: dict[str, torch.Tensor] = {}

    def fitted(tree_path: TreePath, saved: torch.Tensor) -> torch.Tensor:
        like = likes.get(tree_path[: _DEPTH.get(tree_path[0], 0)])
        if like is not None and like.shape != saved.shape:
            like = None
        if saved.device.type == "meta":
            made = torch.empty(saved.shape, dtype=saved.dtype)
            if like is not None:
                made = torch.empty_like(like, dtype=saved.dtype, requires_grad=False)
            return wanted.setdefault(_name(tree_path), made)
        return spread(saved, like) if like is not None and is_sharded(like) else saved

    whole = replaced(state, fitted)
    if wanted:
        from detslurm.pytorch.checkpointing import _dcp

        _dcp.read_into(path / FOLDER, wanted)
    return dict(whole)


_MODELS, _OPTIMIZERS, _GRADIENTS = "models_state_dict", "optimizers_state_dict", "sharded_gradients"
_DEPTH = {_MODELS: 3, _OPTIMIZERS: 4, _GRADIENTS: 3}


def _likes(context: PyTorchTrialContext) -> Iterator[tuple[TreePath, torch.Tensor]]:
    """The trial's own tensors, by the path of their saved parts and belongings."""
    for index, model in enumerate(context.models):
        for name, value in bare(model).state_dict().items():
            if isinstance(value, torch.Tensor):
                yield (_MODELS, index, name), value
                yield (_GRADIENTS, index, name), value
    for index, optimizer in enumerate(context.optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            yield (_OPTIMIZERS, index, "state", number), parameter


def spread(saved: torch.Tensor, like: Any) -> torch.Tensor:
    """A whole tensor, which every rank has, split up as another tensor is."""
    from torch.distributed.tensor import distribute_tensor

    on_device = saved.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def _name(tree_path: TreePath) -> str:
    return "/".join(map(str, tree_path))
