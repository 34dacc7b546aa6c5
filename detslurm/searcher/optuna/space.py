"""Our hyperparameter spaces in Optuna's terms, and its parameters back in ours.

Categories are handed over by their position, so that they may be any values; constants stay here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from detslurm.searcher.hyperparameters import Sample, Space, is_nested

Route = tuple[str, ...]


def parameters(space: Space, route: Route = ()) -> Iterator[tuple[Route, Mapping[str, Any]]]:
    """Every hyperparameter that varies with the way to it, in sorted order."""
    for key in sorted(space):
        spec = space[key]
        if is_nested(spec):
            yield from parameters(spec, (*route, key))
        elif isinstance(spec, Mapping) and spec["type"] != "const":
            yield (*route, key), spec


def parameter_name(route: Route) -> str:
    """The name of a nested hyperparameter: `optimizer.lr`."""
    return ".".join(key.replace("\\", "\\\\").replace(".", "\\.") for key in route)


def distributions(space: Space) -> dict[str, Any]:
    """Optuna's distributions by name."""
    return {parameter_name(route): _distribution(spec) for route, spec in parameters(space)}


def _distribution(spec: Mapping[str, Any]) -> Any:
    from optuna import distributions as kinds

    kind = spec["type"]
    if kind == "categorical":
        return kinds.CategoricalDistribution(tuple(range(len(spec["vals"]))))
    if kind == "int":
        return kinds.IntDistribution(spec["minval"], spec["maxval"])
    if kind == "double":
        return kinds.FloatDistribution(spec["minval"], spec["maxval"])
    # minval and maxval are exponents; a base below 1 turns them round.
    ends = sorted(spec["base"] ** float(spec[end]) for end in ("minval", "maxval"))
    low, high = (max(end, sys.float_info.min) for end in ends)
    return kinds.FloatDistribution(low, high, log=True)


def to_sample(space: Space, params: Mapping[str, Any], route: Route = ()) -> Sample:
    """The hyperparameters of a trial from Optuna's parameters."""
    sample: Sample = {}
    for key in sorted(space):
        spec, here = space[key], (*route, key)
        if is_nested(spec):
            sample[key] = to_sample(spec, params, here)
        elif not isinstance(spec, Mapping):
            sample[key] = spec
        elif spec["type"] == "const":
            sample[key] = spec["val"]
        else:
            value = params[parameter_name(here)]
            sample[key] = spec["vals"][value] if spec["type"] == "categorical" else value
    return sample


def to_params(space: Space, sample: Sample) -> dict[str, Any]:
    """Optuna's parameters from the hyperparameters of a trial."""
    params: dict[str, Any] = {}
    for route, spec in parameters(space):
        value: Any = sample
        for key in route:
            value = value[key]
        if spec["type"] == "categorical":
            value = position(spec["vals"], value)
        params[parameter_name(route)] = value
    return params


def position(vals: Any, value: Any) -> int:
    """Where a value stands among the categories."""
    # True == 1 == 1.0, but they are different categories.
    for index, known in enumerate(vals):
        if type(known) is type(value) and known == value:
            return index
    return list(vals).index(value)
