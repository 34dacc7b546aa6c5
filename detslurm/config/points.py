"""Points of a search space as a user writes them: nested or dotted names, checked values.

A space is the section `hyperparameters` as plain data. `entries` finds the hyperparameter that
each key means, and `fitted` returns the value in the form that a sample has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from detslurm.config.secret_values import masked_values
from detslurm.config.spaces import bounds, constant, is_choice, is_constant, is_group, place_among

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


def fitted(spec: Any, value: Any, name: str = "") -> Any:
    """The value as a sample has it. Raises `Misfit` where the hyperparameter can't have it.

    `name` decides whether the message may show values of the space.
    """
    if is_group(spec):
        raise Misfit("a mapping of hyperparameters")
    if is_constant(spec):
        known = constant(spec)
        return _one_of([known], value, f"the constant {_shown(known, name)}")
    if is_choice(spec):
        place = place_among(spec["vals"], value)
        if place is None:
            raise Misfit(
                f"one of the vals, with all that it holds: {_outlines(spec['vals'], name)}"
            )
        return _fitted_val(spec["vals"][place], value, name)
    if spec["type"] == "categorical":
        return _one_of(spec["vals"], value, f"one of {_shown(list(spec['vals']), name)}")
    return _number(spec, value)


def _fitted_val(val: Any, value: Any, name: str) -> Any:
    if is_group(val):
        return {key: _fitted_at(val, value, key) for key in sorted(val)}
    return fitted(val, value, name)


def _fitted_at(val: Any, value: Any, key: str) -> Any:
    try:
        return _fitted_val(val[key], value[key], key)
    except Misfit as wrong:
        raise Misfit(f"{wrong.expected} as {key}") from None


def _outlines(vals: Sequence[Any], name: str) -> str:
    """The vals of a choice as messages show them: the names of a group, or the value."""
    shown = [f"{{{', '.join(val)}}}" if is_group(val) else _shown(val, name) for val in vals]
    return " or ".join(dict.fromkeys(shown))


def varying(space: Space, above: Route = ()) -> Iterator[tuple[Route, Mapping[str, Any]]]:
    """All hyperparameters that are drawn, and the ways to them; a choice is one of them, with all
    that it holds."""
    for key in sorted(space):
        spec, route = space[key], (*above, key)
        if is_group(spec):
            yield from varying(spec, route)
        elif not is_constant(spec):
            yield route, spec


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
