"""Rules of choices: what the vals of hyperparameters of type `choice` may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detslurm.config.errors import ConfigProblem
from detslurm.config.secret_values import masked_values
from detslurm.config.spaces import constant, is_constant, is_group
from detslurm.config.yaml_node import YamlNode, key_path

# Optuna draws at random what not all trials have, and these learn nothing of it.
_NOT_CONDITIONAL = ("cmaes", "gp", "nsgaii", "nsgaiii", "qmc")


def val_nodes(node: YamlNode) -> list[YamlNode]:
    """The vals of a choice; none of anything else."""
    kind, vals = node.get("type"), node.get("vals")
    is_choice = kind is not None and kind.value == "choice" and vals is not None and vals.is_list
    return list(vals.value) if is_choice and vals is not None else []


def choice_problems(root: YamlNode) -> Iterator[ConfigProblem]:
    """All broken rules; values of a wrong kind are left to the checker."""
    space, sampler = root.get("hyperparameters"), root.get("searcher", "sampler")
    if space is None or not space.is_mapping:
        return
    choices = list(_choices(space, "hyperparameters"))
    for path, node in choices:
        yield from _alike(path, node)
    conditional = [path for path, node in choices if any(map(_has_range, val_nodes(node)))]
    if conditional and sampler is not None and sampler.value in _NOT_CONDITIONAL:
        message = f"{sampler.value} learns nothing of the ranges in the vals of {conditional[0]}"
        advice = "take the sampler tpe, or give every trial the same hyperparameters"
        yield ConfigProblem.at(sampler.at, "searcher.sampler", message, advice)


def _choices(node: YamlNode, path: str) -> Iterator[tuple[str, YamlNode]]:
    """All choices of a space, the outer ones first."""
    if not node.is_mapping:
        return
    if "type" not in node.value:
        for key, child in node.value.items():
            yield from _choices(child, key_path(path, key))
    elif vals := val_nodes(node):
        yield path, node
        for index, val in enumerate(vals):
            yield from _choices(val, key_path(f"{path}.vals", index))


def _alike(path: str, node: YamlNode) -> Iterator[ConfigProblem]:
    """Vals that differ in secrets alone: records, which hold none, could not tell them apart."""
    plain = [val.plain() for val in val_nodes(node)]
    masked = [_outline(masked_values(val)) for val in plain]
    for index, outline in enumerate(masked):
        is_masked = not is_constant(plain[index]) and outline != _outline(plain[index])
        if is_masked and outline in masked[:index]:
            message = "this val differs from an earlier one in secrets alone"
            advice = "give both a constant that tells them apart, such as name"
            where = key_path(f"{path}.vals", index)
            yield ConfigProblem.at(val_nodes(node)[index].at, where, message, advice)


def _outline(val: Any) -> Any:
    """The names and constants of a val."""
    if is_group(val):
        return {name: _outline(inner) for name, inner in val.items()}
    return [constant(val)] if is_constant(val) else None


def _has_range(val: YamlNode) -> bool:
    if not val.is_mapping:
        return False
    if "type" in val.value:
        return bool(val.value["type"].value != "const")
    return any(map(_has_range, val.value.values()))
