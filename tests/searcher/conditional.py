"""Random spaces with choices, what a sample of one may be, and every point of a grid."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

Space = dict[str, Any]

OPTIMIZERS: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": 0},
    "optimizer": {
        "type": "choice",
        "vals": [
            {"name": "adam", "beta1": {"type": "double", "minval": 0.8, "maxval": 1.0}},
            {
                "name": "sgd",
                "momentum": {
                    "type": "choice",
                    "vals": [0, {"type": "double", "minval": 0.5, "maxval": 0.99}],
                },
            },
        ],
    },
}
"""A choice in a choice: only adam has beta1, and only sgd has momentum."""

_KINDS = ("constant", "const", "int", "double", "log", "categorical", "choice", "choice", "group")


def random_space(chance: random.Random, depth: int = 3) -> Space:
    """A space of up to three hyperparameters a level; choices and groups nest."""
    names = chance.sample("abcxyz", chance.randint(0 if depth < 3 else 1, 3))
    return {name: _spec(chance, depth - 1) for name in names}


def _spec(chance: random.Random, depth: int) -> Any:
    kind = chance.choice(_KINDS if depth else _KINDS[:6])
    low, width = chance.randint(-3, 3), chance.randint(1, 4)
    if kind == "group":
        return random_space(chance, depth)
    if kind == "choice":
        vals = [_val(chance, depth, place) for place in range(chance.randint(1, 3))]
        return {"type": kind, "vals": vals}
    if kind == "categorical":
        return {"type": kind, "vals": chance.choices([None, True, 1, "s", [1], {"k": 0}], k=3)}
    if kind == "constant":
        return chance.choice([None, False, 0, 0.5, "s", [1, 2]])
    if kind == "const":
        return {"type": kind, "val": chance.choice([None, {"trial": 3}, {"type": "int"}])}
    number = int if kind == "int" else float
    spec = {"type": kind, "minval": number(low), "maxval": number(low + width)}
    base = {"base": chance.choice([0.5, 2, 10])} if kind == "log" else {}
    return {**spec, **base, "count": chance.randint(1, 4)}


def _val(chance: random.Random, depth: int, place: int) -> Any:
    """Vals of one choice mostly say which they are; some can only be told by their ranges."""
    if chance.random() < 0.6:
        return {"name": f"val {place}", **random_space(chance, depth)}
    return _spec(chance, depth)


def is_possible(spec: Any, value: Any) -> bool:
    """Whether the definition of spaces allows a value, told without the code of the search."""
    if not isinstance(spec, dict):
        return type(value) is type(spec) and bool(value == spec)
    if "type" not in spec:
        return (
            isinstance(value, dict)
            and list(value) == sorted(spec)
            and all(is_possible(spec[name], value[name]) for name in spec)
        )
    match spec["type"]:
        case "const":
            return is_same(value, spec["val"])
        case "categorical":
            return any(is_same(value, val) for val in spec["vals"])
        case "choice":
            return any(is_possible(val, value) for val in spec["vals"])
        case "int":
            return type(value) is int and spec["minval"] <= value <= spec["maxval"]
    ends = [spec["minval"], spec["maxval"]]
    if spec["type"] == "log":
        ends = sorted(spec["base"] ** end for end in ends)
    slack = 1e-12 * (1 + abs(ends[0]) + abs(ends[1]))
    return isinstance(value, float) and ends[0] - slack <= value <= ends[1] + slack


def is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def points(spec: Any) -> list[Any]:
    """Every point of a grid over ints, constants, categories, groups and choices, last one first
    to change, by enumeration."""
    if not isinstance(spec, dict):
        return [spec]
    if "type" not in spec:
        names = sorted(spec)
        product = itertools.product(*(points(spec[name]) for name in names))
        return [dict(zip(names, values, strict=True)) for values in product]
    match spec["type"]:
        case "const":
            return [spec["val"]]
        case "categorical":
            return list(spec["vals"])
        case "choice":
            return [point for val in spec["vals"] for point in points(val)]
    return list(range(spec["minval"], spec["maxval"] + 1))


def whole_ranges(spec: Any) -> Any:
    """The same space whose ranges are ints with a point for each integer."""
    if isinstance(spec, list):
        return [whole_ranges(one) for one in spec]
    if not isinstance(spec, dict):
        return spec
    if spec.get("type") in ("int", "double", "log"):
        low, high = int(spec["minval"]), int(spec["maxval"])
        return {"type": "int", "minval": low, "maxval": high, "count": 99}
    if spec.get("type") == "choice":
        return {**spec, "vals": whole_ranges(spec["vals"])}
    return spec if "type" in spec else {name: whole_ranges(one) for name, one in spec.items()}


def spaces(count: int, seed: int = 1) -> Iterator[Space]:
    """Random spaces, the same each time."""
    chance = random.Random(seed)
    return (random_space(chance) for _ in range(count))
