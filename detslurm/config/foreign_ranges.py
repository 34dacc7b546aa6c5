"""Hyperparameters that look like ranges of other tools, and would be the same in every trial."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from detslurm.config.checking import Noted
from detslurm.config.choice_rules import val_nodes
from detslurm.config.errors import ConfigProblem
from detslurm.config.yaml_node import YamlNode, key_path

_LISTS = ("values", "vals", "choices", "grid_search", "_value")
_BOUNDS = (("min", "max"), ("low", "high"), ("lower", "upper"), ("minval", "maxval"))
_BESIDE = frozenset(
    ["base", "count", "distribution", "log", "mu", "probabilities", "q", "sigma", "step", "_type"]
)  # what stands beside them in W&B, Optuna, Ray Tune and NNI


def foreign_ranges(root: YamlNode) -> Iterator[ConfigProblem]:
    """Mappings without a type that another tool would sample; `single` samples nothing."""
    name, space = root.get("searcher", "name"), root.get("hyperparameters")
    if name is None or name.value == "single" or space is None or not space.is_mapping:
        return
    for path, node in _groups(space, "hyperparameters"):
        if (meant := _meant(node.plain())) is not None:
            message = "without a type this is a constant, the same in every trial"
            advice = f"for a range write {meant}; for a constant {{type: const, val: ...}}"
            yield ConfigProblem.at(node.where, path, message, advice)


def alike_trials(root: YamlNode) -> Iterator[Noted]:
    """The hyperparameters of a search over one point."""
    name, space = root.get("searcher", "name"), root.get("hyperparameters")
    if name is None or name.value in ("single", "custom"):
        return
    ranges = [n for _, n in _groups(space, "") if n.get("type")] if space is not None else []
    if all(node.value["type"].value == "const" for node in ranges):
        where = space.where if space is not None else name.at
        yield Noted("hyperparameters", where, "they differ by their seed alone")


def _groups(node: YamlNode, path: str) -> Iterator[tuple[str, YamlNode]]:
    """All mappings below a hyperparameter space; a range's own members are left out, the vals of a
    choice are not."""
    for key, child in node.value.items():
        yield from _group(child, key_path(path, key))


def _group(node: YamlNode, path: str) -> Iterator[tuple[str, YamlNode]]:
    if not node.is_mapping:
        return
    yield path, node
    if "type" not in node.value:
        yield from _groups(node, path)
    for index, val in enumerate(val_nodes(node)):
        yield from _group(val, key_path(f"{path}.vals", index))


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
