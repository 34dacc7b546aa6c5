"""Hyperparameter spaces: draw a sample, or lay out a grid.

A space is the `hyperparameters` section as plain data: a mapping with a `type` is a range, any
other mapping is nested, everything else is a constant. A choice is drawn first, and then what its
val holds. Keys are walked in sorted order at every level, so that a sample depends on the seed
alone (the original walked nested ones in random order).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from detslurm._base.quantities import counted
from detslurm.config.spaces import constant, is_choice, is_constant, is_group
from detslurm.searcher.mt19937 import RandomStream

Space = Mapping[str, Any]
Sample = dict[str, Any]

_INTERVAL_WORDS = 2


def draw(space: Space, stream: RandomStream) -> Sample:
    """Return one sample of every hyperparameter of a `space`, nested ones included, in sorted
    order. The random numbers come from `stream`, which moves on."""
    return {key: _draw_one(space[key], stream) for key in sorted(space)}


def _draw_one(spec: Any, stream: RandomStream) -> Any:
    if not isinstance(spec, Mapping):
        return spec
    if is_group(spec):
        return draw(spec, stream)
    kind = spec["type"]
    if kind == "const":
        return spec["val"]
    if kind == "categorical":
        return stream.choice(spec["vals"])
    if kind == "choice":
        return _draw_one(stream.choice(spec["vals"]), stream)
    low, high = spec["minval"], spec["maxval"]
    if kind == "int":
        return low + stream.below(high - low + 1)
    value = stream.uniform(low, high)
    return spec["base"] ** value if kind == "log" else value


Draws = list["int | tuple[Draws, ...] | None"]
"""What `draw` draws, in order: a number below n (n), a number of an interval (None), or a val of a
choice and what this val draws (the draws of each val)."""


def draws_of(space: Space) -> Draws:
    """Return what `draw` draws."""
    return [one for key in sorted(space) for one in _draws_of_one(space[key])]


def _draws_of_one(spec: Any) -> Draws:
    if is_constant(spec):
        return []
    if is_group(spec):
        return draws_of(spec)
    if is_choice(spec):
        return [tuple(_draws_of_one(val) for val in spec["vals"])]
    if spec["type"] == "categorical":
        return [len(spec["vals"])]
    return [spec["maxval"] - spec["minval"] + 1 if spec["type"] == "int" else None]


def pass_over(draws: Draws, stream: RandomStream) -> None:
    """Leave a stream as `draw` would, without making a sample, which takes longer."""
    for one in draws:
        if one is None:
            stream.skip(_INTERVAL_WORDS)
        elif isinstance(one, tuple):
            pass_over(stream.choice(one), stream)
        else:
            stream.below(one)


def dimensions(space: Space) -> int:
    """Return the most values that are drawn for one sample."""
    return _most_drawn(draws_of(space))


def _most_drawn(draws: Draws) -> int:
    inner = (max(map(_most_drawn, one)) for one in draws if isinstance(one, tuple))
    return len(draws) + sum(inner)


class Grid:
    """The full product of all hyperparameters, taken from its end: the first trial has the largest
    values. A choice has the points of its vals one after the other.

    Args:
        space: The configuration's section `hyperparameters`, as plain data.
    """

    def __init__(self, space: Space) -> None:
        self._space, self._size = space, _points(space)

    def __len__(self) -> int:
        return self._size

    def point(self, index: int) -> Sample:
        """Return the sample of the trial `index`, from 0 in the order of creation; `IndexError` if
        the grid has no such point."""
        rest = self._size - 1 - index
        if not 0 <= rest < self._size:
            raise IndexError(
                f"the grid has {counted(self._size, 'point')}; there is none with index {index}"
            )
        return _group_at(self._space, rest)

    def index(self, sample: Sample) -> int | None:
        """Return the trial that has this `sample`, or None if it is no point of the grid."""
        place = _place_of(self._space, sample)
        return None if place is None else self._size - 1 - place


def _points(spec: Any) -> int:
    if is_constant(spec):
        return 1
    if is_group(spec):
        return math.prod(map(_points, spec.values()))
    if is_choice(spec):
        return sum(map(_points, spec["vals"]))
    if spec["type"] == "categorical":
        return len(spec["vals"])
    count: int = spec["count"]
    return min(count, spec["maxval"] - spec["minval"] + 1) if spec["type"] == "int" else count


def _group_at(space: Space, place: int) -> Sample:
    """The point of a group; its last hyperparameter changes fastest."""
    values = {}
    for key in sorted(space, reverse=True):
        place, own = divmod(place, _points(space[key]))
        values[key] = _value_at(space[key], own)
    return dict(reversed(values.items()))


def _value_at(spec: Any, place: int) -> Any:
    if is_constant(spec):
        return constant(spec)
    if is_group(spec):
        return _group_at(spec, place)
    if is_choice(spec):
        return _choice_at(spec["vals"], place)
    if spec["type"] == "categorical":
        return spec["vals"][place]
    low, high, parts = spec["minval"], spec["maxval"], _points(spec) - 1
    if spec["type"] == "int":
        if not parts:
            return _round_half_away(low + high, 2)
        return _round_half_away(low * (parts - place) + high * place, parts)
    value = low + place * (high - low) / parts if parts else low + (high - low) / 2.0
    return spec["base"] ** value if spec["type"] == "log" else value


def _choice_at(vals: Sequence[Any], place: int) -> Any:
    for val in vals:
        if place < (points := _points(val)):
            return _value_at(val, place)
        place -= points
    raise IndexError("the choice has fewer points")


def _place_of(spec: Any, value: Any) -> int | None:
    """Where a value is among the points; numbers that were computed differ in their last digits."""
    if is_group(spec):
        return _place_of_group(spec, value)
    if is_choice(spec):
        return _place_of_choice(spec["vals"], value)
    known = (place for place in range(_points(spec)) if _is_same(_value_at(spec, place), value))
    return next(known, None)


def _place_of_group(space: Space, values: Any) -> int | None:
    if not isinstance(values, Mapping) or values.keys() != space.keys():
        return None
    found = 0
    for key in sorted(space):
        if (place := _place_of(space[key], values[key])) is None:
            return None
        found = found * _points(space[key]) + place
    return found


def _place_of_choice(vals: Sequence[Any], value: Any) -> int | None:
    before = 0
    for val in vals:
        if (place := _place_of(val, value)) is not None:
            return before + place
        before += _points(val)
    return None


def _is_same(known: Any, value: Any) -> bool:
    if isinstance(known, float) and isinstance(value, float) and math.isclose(known, value):
        return True
    return bool(known == value) and type(known) is type(value)


def _round_half_away(dividend: int, divisor: int) -> int:
    """The quotient; whole numbers may be beyond the precision of a float."""
    size = (2 * abs(dividend) + divisor) // (2 * divisor)
    return size if dividend >= 0 else -size
