"""Hyperparameter spaces as plain data: groups, constants, and the vals of a choice.

A val of a choice is whatever a hyperparameter may be: a constant, a range, a group, a choice.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from detslurm.config.secret_names import MASK, is_secret

_SLACK = 1e-9  # of a range's width: the ends of a grid, and powers, are rounded


def is_group(spec: Any) -> bool:
    """Whether a hyperparameter is a group of others."""
    return isinstance(spec, Mapping) and not isinstance(spec.get("type"), str)


def is_choice(spec: Any) -> bool:
    """Whether a hyperparameter is a choice, whose vals may hold others."""
    return isinstance(spec, Mapping) and spec.get("type") == "choice"


def is_constant(spec: Any) -> bool:
    """Whether a hyperparameter is the same in every trial that has it."""
    return not isinstance(spec, Mapping) or spec.get("type") == "const"


def constant(spec: Any) -> Any:
    """The value of a constant."""
    return spec.get("val") if isinstance(spec, Mapping) else spec


def place_among(vals: Sequence[Any], value: Any) -> int | None:
    """The index of the val of a choice that a trial's value came from, or None.

    It is the first val of the same names and constants whose ranges hold the value; if no ranges
    do, as where code has changed a number, the first of the same names and constants. Asterisks in
    the value fit any constant that may be a secret.
    """
    for in_range, likely in itertools.product((True, False), repeat=2):
        for place, val in enumerate(vals):
            if _fits(val, value, in_range, likely):
                return place
    return None


def _fits(spec: Any, value: Any, in_range: bool, likely: bool) -> bool:
    if is_constant(spec):
        return _equal(value, constant(spec)) or _is_masked(value, constant(spec), likely)
    if is_group(spec):
        return (
            isinstance(value, Mapping)
            and value.keys() == spec.keys()
            and all(_fits(spec[name], value[name], in_range, likely) for name in spec)
        )
    if spec["type"] == "choice":
        return any(_fits(val, value, in_range, likely) for val in spec["vals"])
    if spec["type"] == "categorical":
        return any(_equal(value, val) for val in spec["vals"])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and (not in_range or _holds(spec, value))


def bounds(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """The smallest and the largest value of an `int`, `double` or `log`."""
    low, high = spec["minval"], spec["maxval"]
    if spec["type"] != "log":
        return low, high
    ends = sorted(spec["base"] ** float(end) for end in (low, high))  # a base below 1 turns them
    return ends[0], ends[1]


def _equal(value: Any, other: Any) -> bool:
    # True == 1 for Python, but they are two vals.
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _is_masked(value: Any, plain: Any, likely: bool) -> bool:
    """Whether a value is this one with secrets masked; `likely` leaves out words such as none."""
    if isinstance(plain, Mapping):
        same = isinstance(value, Mapping) and value.keys() == plain.keys()
        pairs = [(value[name], plain[name]) for name in plain] if same else []
    elif isinstance(plain, list | tuple):
        same = isinstance(value, list | tuple) and len(value) == len(plain)
        pairs = list(zip(value, plain, strict=True)) if same else []
    else:
        around = ".*".join(map(re.escape, value.split(MASK))) if isinstance(value, str) else ""
        is_secret_of = MASK in str(value) and re.fullmatch(around, str(plain), re.DOTALL)
        return bool(is_secret_of) and is_secret("token" if likely else "password", plain)
    return same and all(_equal(*pair) or _is_masked(*pair, likely) for pair in pairs)


def _holds(spec: Mapping[str, Any], value: float) -> bool:
    if spec["type"] == "int" and value % 1 != 0:
        return False
    low, high = bounds(spec)
    slack = _SLACK * (high - low)
    return bool(low - slack <= value <= high + slack)
