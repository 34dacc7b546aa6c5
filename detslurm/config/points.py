"""Points of a search space as a user writes them: nested or dotted names, checked values.

A space is the section `hyperparameters` as plain data. `entries` finds the hyperparameter that
each key means, and `fitted` returns the value in the form that a sample has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from detslurm.config.secret_values import masked_values

Space = Mapping[str, Any]
Route = tuple[str, ...]
_SHOWN = 80
# A bound such as 10 ** -4.3 differs in its last digits from the number that a user writes.
_ROUNDING = 1e-9


class PointEntry(NamedTuple):
    """One value of a point; `route` is None where the space has no such hyperparameter."""

    keys: Route  # as they were written
    route: Route | None
    spec: Any
    value: Any


class Misfit(ValueError):
    """A value that a hyperparameter can't have; `expected` describes the values that it can."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


def is_group(spec: Any) -> bool:
    """Whether a part of a space is a mapping of hyperparameters."""
    return isinstance(spec, Mapping) and not isinstance(spec.get("type"), str)


def is_constant(spec: Any) -> bool:
    """Whether a hyperparameter has the same value in every trial."""
    return not isinstance(spec, Mapping) or spec.get("type") == "const"


def entries(space: Space, given: Mapping[str, Any]) -> Iterator[PointEntry]:
    """The values of a point, each with the hyperparameter that it is for, in sorted order.

    A name with dots is the way into nested hyperparameters, unless one is called so.
    """
    for key in sorted(given):
        yield from _entries(space, (key,), (), key, given[key])


def _entries(space: Space, keys: Route, above: Route, key: str, value: Any) -> Iterator[PointEntry]:
    found = _find(space, key)
    if found is None:
        yield PointEntry(keys, None, None, value)
        return
    route, spec = found
    if is_group(spec) and isinstance(value, Mapping):
        for name in sorted(value):
            yield from _entries(spec, (*keys, name), (*above, *route), name, value[name])
    else:
        yield PointEntry(keys, (*above, *route), spec, value)


def _find(space: Space, key: str) -> tuple[Route, Any] | None:
    if key in space:
        return (key,), space[key]
    parts = key.split(".")
    for end in range(1, len(parts)):
        head, rest = ".".join(parts[:end]), ".".join(parts[end:])
        inner: Any = space.get(head)
        if is_group(inner) and (found := _find(inner, rest)) is not None:
            return (head, *found[0]), found[1]
    return None


def value_at(sample: Mapping[str, Any], route: Route) -> Any:
    """The value of one hyperparameter in a sample. Raises `KeyError` where it has none."""
    value: Any = sample
    for key in route:
        if not isinstance(value, Mapping):
            raise KeyError(key)
        value = value[key]
    return value


def with_value(sample: Mapping[str, Any], route: Route, value: Any) -> dict[str, Any]:
    """The sample with another value of one hyperparameter."""
    key, rest = route[0], route[1:]
    return {**sample, key: with_value(sample.get(key, {}), rest, value) if rest else value}


def bounds(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """The smallest and the largest value of an `int`, `double` or `log`."""
    low, high = spec["minval"], spec["maxval"]
    if spec["type"] != "log":
        return low, high
    ends = sorted(spec["base"] ** float(end) for end in (low, high))  # a base below 1 turns them
    return ends[0], ends[1]


def fitted(spec: Any, value: Any, name: str = "") -> Any:
    """The value as a sample has it. Raises `Misfit` where the hyperparameter can't have it.

    `name` decides whether the message may show values of the space.
    """
    if is_group(spec):
        raise Misfit("a mapping of hyperparameters")
    if is_constant(spec):
        constant = spec["val"] if isinstance(spec, Mapping) else spec
        return _one_of([constant], value, f"the constant {_shown(constant, name)}")
    if spec["type"] == "categorical":
        return _one_of(spec["vals"], value, f"one of {_shown(list(spec['vals']), name)}")
    return _number(spec, value)


def _number(spec: Mapping[str, Any], value: Any) -> Any:
    low, high = bounds(spec)
    if spec["type"] == "int":
        if type(value) is not int or not low <= value <= high:
            raise Misfit(f"an integer from {low} to {high}")
        return value
    slack = _ROUNDING * (low if spec["type"] == "log" else high - low)
    if type(value) not in (int, float) or not low - slack <= value <= high + slack:
        raise Misfit(f"a number from {low:g} to {high:g}")
    return min(max(float(value), low), high)


def _one_of(values: Any, value: Any, expected: str) -> Any:
    """The known value that is meant: 1 and 1.0 are equal, and True is neither of them."""
    alike = [known for known in values if _means(known, value)]
    if not alike:
        raise Misfit(expected)
    return next((known for known in alike if type(known) is type(value)), alike[0])


def _means(known: Any, value: Any) -> bool:
    one_is_bool = isinstance(known, bool) != isinstance(value, bool)
    return not one_is_bool and bool(_plain(known) == _plain(value))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(value: Any, name: str) -> str:
    text = json.dumps(masked_values(value, name), ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
