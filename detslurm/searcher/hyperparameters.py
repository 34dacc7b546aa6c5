"""Hyperparameter spaces: draw a sample, or lay out a grid.

A space is the `hyperparameters` section as plain data: a mapping with a `type` is a range, any
other mapping is nested, everything else is a constant. Keys are walked in sorted order at every
level, so that a sample depends on the seed alone (the original walked nested ones in random order).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from detslurm._base.quantities import counted
from detslurm.searcher.mt19937 import RandomStream

Space = Mapping[str, Any]
Sample = dict[str, Any]


def is_nested(spec: Any) -> bool:
    return isinstance(spec, Mapping) and not isinstance(spec.get("type"), str)


def draw(space: Space, stream: RandomStream) -> Sample:
    """Draw one sample of every hyperparameter, nested ones included.

    Args:
        space: The configuration's section `hyperparameters`, as plain data.
        stream: Where random numbers come from; it moves on.

    Returns:
        The values by name, in sorted order.
    """
    return {key: _draw_one(space[key], stream) for key in sorted(space)}


def _draw_one(spec: Any, stream: RandomStream) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    if is_nested(spec):
        return draw(spec, stream)
    kind = spec["type"]
    if kind == "const":
        return spec["val"]
    if kind == "categorical":
        return stream.choice(spec["vals"])
    low, high = spec["minval"], spec["maxval"]
    if kind == "int":
        return low + stream.below(high - low + 1)
    value = stream.uniform(low, high)
    return spec["base"] ** value if kind == "log" else value


def choices(space: Space) -> Iterator[int | None]:
    """The draws of `draw`, in order: a number below n (n), or a number of an interval (None)."""
    for key in sorted(space):
        spec = space[key]
        if not isinstance(spec, Mapping):
            continue
        if is_nested(spec):
            yield from choices(spec)
        elif spec["type"] == "categorical":
            yield len(spec["vals"])
        elif spec["type"] == "int":
            yield spec["maxval"] - spec["minval"] + 1
        elif spec["type"] != "const":
            yield None


class Grid:
    """The full product of all axes, taken from its end: the first trial has the largest values.

    Args:
        space: The configuration's section `hyperparameters`, as plain data.
    """

    def __init__(self, space: Space) -> None:
        self._axes = list(_axes(space))

    def __len__(self) -> int:
        return math.prod(len(values) for _, values in self._axes)

    def point(self, index: int) -> Sample:
        """Return the sample of one trial.

        Args:
            index: The trial, counted from 0 in the order of creation.

        Raises:
            IndexError: If the grid has no such point.
        """
        rest = len(self) - 1 - index
        if not 0 <= rest < len(self):
            raise IndexError(
                f"the grid has {counted(len(self), 'point')}; there is none with index {index}"
            )
        sample: Sample = {}
        for route, values in reversed(self._axes):
            rest, digit = divmod(rest, len(values))
            _put(sample, route, values[digit])
        return _in_key_order(sample)

    def index(self, sample: Sample) -> int | None:
        """Return the trial that has this sample, or None if it is no point of the grid.

        Args:
            sample: The value of every hyperparameter.
        """
        rest = 0
        for route, values in self._axes:
            digit = _place(values, _value(sample, route))
            if digit is None:
                return None
            rest = rest * len(values) + digit
        return len(self) - 1 - rest


def _value(sample: Sample, route: tuple[str, ...]) -> Any:
    value: Any = sample
    for key in route:
        value = value[key]
    return value


def _place(values: list[Any], value: Any) -> int | None:
    """Where a value is on an axis; numbers that were computed differ in their last digits."""
    for place, known in enumerate(values):
        if known == value and type(known) is type(value):
            return place
        if isinstance(known, float) and isinstance(value, float) and math.isclose(known, value):
            return place
    return None


def _axes(space: Space, route: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    for key in sorted(space):
        spec = space[key]
        if is_nested(spec) and spec:
            yield from _axes(spec, (*route, key))
        else:
            yield (*route, key), _axis_values(spec)


def _axis_values(spec: Any) -> list[Any]:
    if not isinstance(spec, Mapping) or not spec:
        return [spec]
    kind = spec["type"]
    if kind == "const":
        return [spec["val"]]
    if kind == "categorical":
        return list(spec["vals"])
    low, high, count = spec["minval"], spec["maxval"], spec["count"]
    if kind == "int":
        count = min(count, high - low + 1)
        if count == 1:
            return [_round_half_away(low + high, 2)]
        parts = count - 1
        return [_round_half_away(low * (parts - i) + high * i, parts) for i in range(count)]
    values = _spaced(low, high, count)
    return [spec["base"] ** value for value in values] if kind == "log" else values


def _spaced(low: float, high: float, count: int) -> list[float]:
    if count == 1:
        return [low + (high - low) / 2.0]
    return [low + i * (high - low) / (count - 1) for i in range(count)]


def _round_half_away(dividend: int, divisor: int) -> int:
    """The quotient; whole numbers may be beyond the precision of a float."""
    size = (2 * abs(dividend) + divisor) // (2 * divisor)
    return size if dividend >= 0 else -size


def _put(sample: Sample, route: tuple[str, ...], value: Any) -> None:
    for key in route[:-1]:
        sample = sample.setdefault(key, {})
    sample[route[-1]] = value


def _in_key_order(sample: Sample) -> Sample:
    return {
        key: _in_key_order(value) if isinstance(value, dict) else value
        for key, value in sorted(sample.items())
    }
