"""Hypothesis strategies for search spaces, and whether a sample lies in its space."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

Space = dict[str, Any]
_NAMES = st.sampled_from(["lr", "a.b", "b", "depth", "x"])


def _ordered(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    return st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1])


def _range(kind: str, numbers: st.SearchStrategy[Any], **more: Any) -> st.SearchStrategy[Space]:
    pairs = _ordered(numbers)
    return pairs.map(lambda p: {"type": kind, "minval": p[0], "maxval": p[1], "count": 3, **more})


RANGES = st.one_of(
    _range("int", st.integers(-(2**40), 2**40)),
    _range("double", st.floats(-1e9, 1e9)),
    _range("log", st.floats(-8, 8), base=10),
    _range("log", st.integers(-8, 8), base=0.5),
    st.lists(st.sampled_from([1, True, 1.5, "a", None, "b"]), min_size=1, max_size=4).map(
        lambda vals: {"type": "categorical", "vals": vals}
    ),
)
SPACES: st.SearchStrategy[Space] = st.recursive(
    st.dictionaries(_NAMES, RANGES | st.just(7), min_size=1, max_size=4),
    lambda inner: st.dictionaries(_NAMES, inner | RANGES, min_size=1, max_size=3),
    max_leaves=6,
)


def is_in(space: Space, sample: Any) -> bool:
    """Whether a sample has a possible value of every hyperparameter, and no other."""
    return sample.keys() == space.keys() and all(_is_in(space[k], sample[k]) for k in space)


def _is_in(spec: Any, value: Any) -> bool:
    if not isinstance(spec, dict):
        return bool(spec == value)
    if "type" not in spec:
        return is_in(spec, value)
    if spec["type"] == "categorical":
        return any(type(v) is type(value) and v == value for v in spec["vals"])
    low, high = spec["minval"], spec["maxval"]
    if spec["type"] == "int":
        return type(value) is int and low <= value <= high
    if spec["type"] == "log":
        low, high = sorted([spec["base"] ** float(low), spec["base"] ** float(high)])
    return type(value) is float and math.isfinite(value) and low <= value <= high


def dotted(sample: Any, above: str = "") -> dict[str, Any]:
    """A sample under names with dots."""
    found: dict[str, Any] = {}
    for key, value in sample.items():
        found |= (
            dotted(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
        )
    return found
