"""Our hyperparameter spaces in Optuna's terms, and its parameters back in ours.

Categories and the vals of choices are handed over by their position, so that they may be any
values; constants stay here. The parameters of a val have names of their own, because another
val may draw something else under the same name: `optimizer[1].lr`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from detslurm.config.spaces import bounds, constant, is_choice, is_constant, is_group, place_among
from detslurm.searcher.hyperparameters import Sample, Space

Suggest = Callable[[str, Mapping[str, Any]], Any]
"""The value of a range by the name of its parameter; of categories and choices, the position."""


def sample_of(space: Space, suggest: Suggest, outer: str = "") -> Sample:
    """The sample of the suggested values; only what it holds is asked for, in sorted order."""
    return {key: _value_of(space[key], suggest, _name(outer, key)) for key in sorted(space)}


def _value_of(spec: Any, suggest: Suggest, name: str) -> Any:
    if is_constant(spec):
        return constant(spec)
    if is_group(spec):
        return sample_of(spec, suggest, name)
    value = suggest(name, spec)
    if is_choice(spec):
        return _value_of(spec["vals"][value], suggest, f"{name}[{value}]")
    return spec["vals"][value] if spec["type"] == "categorical" else value


def suggest_by(trial: Any) -> Suggest:
    """Let an Optuna trial suggest values."""

    def suggest(name: str, spec: Mapping[str, Any]) -> Any:
        kind = spec["type"]
        if kind in ("categorical", "choice"):
            return trial.suggest_categorical(name, range(len(spec["vals"])))
        if kind == "int":
            return trial.suggest_int(name, spec["minval"], spec["maxval"])
        return trial.suggest_float(name, *_ends(spec), log=kind == "log")

    return suggest


def to_params(space: Space, sample: Sample) -> dict[str, Any]:
    """Optuna's parameters from the hyperparameters of a trial. Raises `ValueError` where a choice
    has no such val."""
    return {name: value for name, _, value in _parameters(space, sample)}


def distributions(space: Space, sample: Sample) -> dict[str, Any]:
    """Optuna's distributions by name, of those parameters that a sample has."""
    return {name: distribution(spec) for name, spec, _ in _parameters(space, sample)}


def _parameters(
    space: Space, sample: Sample, outer: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    for key in sorted(space):
        if not is_constant(space[key]):
            yield from _parameters_of(space[key], sample[key], _name(outer, key))


def _parameters_of(
    spec: Any, value: Any, name: str
) -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    if is_group(spec):
        yield from _parameters(spec, value, name)
    elif is_choice(spec):
        place = place_among(spec["vals"], value)
        if place is None:
            raise ValueError(f"{name} has no such val: {value}")
        yield name, spec, place
        yield from _parameters_of(spec["vals"][place], value, f"{name}[{place}]")
    elif not is_constant(spec):
        yield name, spec, position(spec["vals"], value) if spec["type"] == "categorical" else value


def _name(outer: str, key: str) -> str:
    """The name of a nested hyperparameter: `optimizer.lr`."""
    for sign in "\\.[":
        key = key.replace(sign, f"\\{sign}")
    return f"{outer}.{key}" if outer else key


def distribution(spec: Mapping[str, Any]) -> Any:
    """Optuna's distribution of one hyperparameter."""
    from optuna import distributions as kinds

    kind = spec["type"]
    if kind in ("categorical", "choice"):
        return kinds.CategoricalDistribution(tuple(range(len(spec["vals"]))))
    if kind == "int":
        return kinds.IntDistribution(spec["minval"], spec["maxval"])
    return kinds.FloatDistribution(*_ends(spec), log=kind == "log")


def _ends(spec: Mapping[str, Any]) -> tuple[float, float]:
    low, high = bounds(spec)
    if spec["type"] == "double":
        return low, high
    return max(low, sys.float_info.min), max(high, sys.float_info.min)


def position(vals: Any, value: Any) -> int:
    """Where a value stands among the categories."""
    # True == 1 == 1.0, but they are different categories.
    for index, known in enumerate(vals):
        if type(known) is type(value) and known == value:
            return index
    return list(vals).index(value)
