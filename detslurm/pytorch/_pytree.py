"""States as modules, optimizers and callbacks give them: tensors in dictionaries and lists."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

TreePath = tuple[Any, ...]
"""Keys and indices that lead to a tensor."""


def _itself(value: Any) -> Any:
    return value


def replaced(
    value: Any,
    tensor: Callable[[TreePath, torch.Tensor], torch.Tensor],
    other: Callable[[Any], Any] = _itself,
    tree_path: TreePath = (),
) -> Any:
    """The same structure, its dictionaries and lists new ones, with what the functions make of
    each tensor and of everything else."""
    if isinstance(value, torch.Tensor):
        return tensor(tree_path, value)
    if isinstance(value, dict):
        new = copy.copy(value)  # the states of modules have attributes, too
        for key, item in value.items():
            new[key] = replaced(item, tensor, other, (*tree_path, key))
        return new
    if type(value) in (list, tuple):
        items = (replaced(v, tensor, other, (*tree_path, i)) for i, v in enumerate(value))
        return type(value)(items)
    return other(value)
