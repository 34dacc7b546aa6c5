"""Rules of hyperparameter spaces: grids, choices, and ranges in the form of other tools."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from detslurm._base import contract
from detslurm._base.quantities import human_size
from detslurm.config.errors import ConfigProblem, Noted
from detslurm.config.secret_values import masked_values
from detslurm.config.spaces import constant, is_constant, is_group
from detslurm.config.yaml_node import YamlNode, key_path, space_nodes, val_nodes, value_nodes

MAX_TRIALS = 1_000_000
_COUNTED = ("int", "double", "log")
# Optuna draws at random what not all trials have, and these learn nothing of it.
_NOT_CONDITIONAL = ("cmaes", "gp", "nsgaii", "nsgaiii", "qmc")
_LISTS = ("values", "vals", "choices", "grid_search", "_value")
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("minval", "maxval"))
_BESIDE = frozenset(
    ["base", "count", "distribution", "log", "mu", "probabilities", "q", "sigma", "step", "_type"]
)  # what stands beside them in W&B, Optuna, Ray Tune and NNI


def space_problems(root: YamlNode) -> Iterator[ConfigProblem]:
    """All broken rules; values of a wrong kind are left to the checker."""
    space = root.get("hyperparameters")
    if space is None or not space.is_mapping:
        return
    name = root.get("searcher", "name")
    if name is not None and name.value == "grid":
        yield from _grid(space)
    yield from _size(space)
    yield from _choices(space, root.get("searcher", "sampler"))
    if name is not None and name.value != "single":  # which samples nothing
        yield from _foreign_ranges(space)


def alike_trials(root: YamlNode) -> Iterator[Noted]:
    """The hyperparameters of a search over one point."""
    name, space = root.get("searcher", "name"), root.get("hyperparameters")
    if name is None or name.value in ("single", "custom"):
        return
    nodes = space_nodes(space, "") if space is not None else ()
    kinds = [node.value["type"].value for _, node in nodes if node.get("type")]
    if all(kind == "const" for kind in kinds):
        where = space.where if space is not None else name.at
        yield Noted("hyperparameters", where, "they differ by their seed alone")


# -- grids -----------------------------------------------------------------------------------------


def _grid(space: YamlNode) -> Iterator[ConfigProblem]:
    uncounted = [
        (path, node)
        for path, node in space_nodes(space, "hyperparameters", in_lists=True)
        if "type" in node.value
        if node.value["type"].value in _COUNTED and node.get("count") is None
    ]
    for path, node in uncounted:
        message = "grid search is in use but count was not provided"
        hint = "add count: the number of grid points"
        yield ConfigProblem.at(node.where, path, message, hint)
    points = 0 if uncounted else _points(space)
    if points > MAX_TRIALS:
        message = f"the grid has {points} points, more than {MAX_TRIALS} trials"
        yield ConfigProblem.at(space.where, "hyperparameters", message, "lower some count")


def _points(node: YamlNode) -> int:
    if not node.is_mapping:
        return 1
    if "type" not in node.value:
        return functools.reduce(lambda n, child: n * _points(child), node.value.values(), 1)
    if vals := val_nodes(node):
        return sum(map(_points, vals))
    kind, spec = node.value["type"].value, node.plain()
    if kind == "categorical":
        return len(spec.get("vals") or ())
    count = spec.get("count")
    if kind not in _COUNTED or not isinstance(count, int):
        return 1
    low, high = spec.get("minval"), spec.get("maxval")
    if kind == "int" and isinstance(low, int) and isinstance(high, int):
        return min(count, high - low + 1)
    return count


# -- the size of a trial's hyperparameters ---------------------------------------------------------


def _size(space: YamlNode) -> Iterator[ConfigProblem]:
    """A trial gets them in one variable of its environment."""
    longest = {name: _longest(node) for name, node in space.value.items()}
    if (whole := len(json.dumps(longest))) < contract.LONGEST_VALUE:
        return
    sizes = {name: len(json.dumps(value)) for name, value in longest.items()}
    name = max(sizes, key=lambda name: sizes[name])
    message = (
        f"the hyperparameters of a trial take {human_size(whole)} as JSON, of which"
        f" {human_size(sizes[name])} are here: less than {human_size(contract.LONGEST_VALUE)} are"
        " expected in all"
    )
    advice = "put such data in a file of the code directory"
    where, path = space.value[name].where, key_path("hyperparameters", name)
    yield ConfigProblem.at(where, path, message, advice)


def _longest(node: YamlNode) -> Any:
    """The longest value that a hyperparameter may have, as JSON; of a range its specification."""
    if not node.is_mapping:
        return node.plain()
    if "type" not in node.value:
        return {name: _longest(child) for name, child in node.value.items()}
    spec = node.plain()
    values = [spec.get("val")] if spec["type"] == "const" else spec.get("vals")
    if vals := val_nodes(node):
        values = list(map(_longest, vals))
    if isinstance(values, list) and values:
        return max(values, key=lambda value: len(json.dumps(value)))
    return spec


# -- choices ---------------------------------------------------------------------------------------


def _choices(space: YamlNode, sampler: YamlNode | None) -> Iterator[ConfigProblem]:
    nodes = space_nodes(space, "hyperparameters")
    choices = [(path, node) for path, node in nodes if val_nodes(node)]
    for path, node in choices:
        yield from _alike(path, node)
    conditional = [path for path, node in choices if any(map(_has_range, val_nodes(node)))]
    if conditional and sampler is not None and sampler.value in _NOT_CONDITIONAL:
        message = f"{sampler.value} learns nothing of the ranges in the vals of {conditional[0]}"
        advice = "take the sampler tpe, or give every trial the same hyperparameters"
        yield ConfigProblem.at(sampler.at, "searcher.sampler", message, advice)


def _alike(path: str, node: YamlNode) -> Iterator[ConfigProblem]:
    """Vals that differ in secrets alone: records, which hold none, could not tell them apart."""
    plain = [val.plain() for val in val_nodes(node)]
    masked = [_outline(masked_values(val)) for val in plain]
    for index, outline in enumerate(masked):
        is_masked = not is_constant(plain[index]) and outline != _outline(plain[index])
        if is_masked and outline in masked[:index]:
            message = "this val differs from an earlier one in secrets alone"
            advice = "give each a constant of its own, such as name"
            where = key_path(f"{path}.vals", index)
            yield ConfigProblem.at(val_nodes(node)[index].at, where, message, advice)


def _outline(val: Any) -> Any:
    """The names and constants of a val."""
    if is_group(val):
        return {name: _outline(inner) for name, inner in val.items()}
    return [constant(val)] if is_constant(val) else None


def _has_range(val: YamlNode) -> bool:
    types = (node.value["type"] for _, node in value_nodes(val, "") if "type" in node.value)
    return any(kind.value != "const" for kind in types)


# -- ranges in the form of other tools -------------------------------------------------------------


def _foreign_ranges(space: YamlNode) -> Iterator[ConfigProblem]:
    """Mappings without a type that another tool would sample."""
    for path, node in space_nodes(space, "hyperparameters"):
        if (meant := _meant(node.plain())) is not None:
            message = "without a type this is a constant, the same in every trial"
            advice = f"for a range write {meant}; for a constant {{type: const, val: ...}}"
            yield ConfigProblem.at(node.where, path, message, advice)


def _meant(spec: Mapping[str, Any]) -> str | None:
    """The range in the form of this configuration; None for a group of hyperparameters."""
    if "type" in spec:
        return None
    for key in _LISTS:
        if isinstance(spec.get(key), list) and spec.keys() <= _BESIDE | {key}:
            return f"{{type: categorical, vals: {json.dumps(spec[key])}}}"
    for low, high in _BOUNDS:
        if {low, high} <= spec.keys() <= _BESIDE | {low, high}:
            least, most = _number(spec[low]), _number(spec[high])
            return None if least is None or most is None else _between(spec, least, most)
    return None


def _number(bound: Any) -> float | None:
    """A bound as a number; YAML reads 1e-4 as text."""
    try:
        return bound if type(bound) in (int, float) else float(bound)
    except (TypeError, ValueError):
        return None


def _between(spec: Mapping[str, Any], low: float, high: float) -> str:
    if (spec.get("log") or "log" in str(spec.get("distribution", ""))) and 0 < low < high:
        low, high = (round(math.log10(bound), 4) for bound in (low, high))
        return f"{{type: log, base: 10, minval: {low:g}, maxval: {high:g}}}"
    kind = "int" if type(low) is int and type(high) is int else "double"
    return f"{{type: {kind}, minval: {low}, maxval: {high}}}"
