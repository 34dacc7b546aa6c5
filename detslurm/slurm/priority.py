"""Determined's priority and weight as Slurm's nice, the only rank that an ordinary user may set.

A greater nice is a later start, and only an operator may go below 0.
"""

from __future__ import annotations

import math

FIRST, DEFAULT, LAST = 1, 42, 99


def nice_of(priority: int) -> int:
    """The nice of a priority, 1 (first) to 99 (last): one point of Slurm's priority a step."""
    return priority - FIRST


def priority_of(nice: int) -> int:
    """The priority whose nice comes nearest to this nice."""
    return min(max(nice + FIRST, FIRST), LAST)


def priority_of_weight(weight: float) -> int:
    """The priority that stands for a fair share's weight: twice the weight is half the number."""
    if not weight > 0 or math.isinf(weight):
        raise ValueError(f"a weight is a positive number, not {weight:g}")
    return round(min(max(DEFAULT / weight, FIRST), LAST))
