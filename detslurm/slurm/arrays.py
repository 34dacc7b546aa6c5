"""Cutting an experiment's trials into arrays that the cluster accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class JobArray:
    """One array: trials first .. first+count-1 of the plan."""

    first: int
    count: int
    throttle: int | None = None  # how many run at once; None = all
    after: int | None = None  # number of the array that must end before this one starts


def plan_arrays(
    trials: int,
    *,
    max_array_size: int,
    max_array_tasks: int | None = None,
    throttle: int | None = None,
) -> tuple[JobArray, ...]:
    """As few arrays as possible, about equal, which together keep the throttle.

    Where there are more arrays than may run at once, the later ones wait for earlier ones.
    """
    if trials < 1:
        return ()
    size = max(1, min(max_array_size, max_array_tasks or max_array_size))
    total = -(-trials // size)
    lanes = total if throttle is None else min(total, throttle)
    arrays: list[JobArray] = []
    first = 0
    for number in range(total):
        count = _share(trials, total, number)
        share = None if throttle is None else _share(throttle, lanes, number % lanes)
        limited = share if share is not None and share < count else None
        after = number - lanes if number >= lanes else None
        arrays.append(JobArray(first, count, limited, after))
        first += count
    return tuple(arrays)


def first_elements(arrays: Sequence[JobArray], count: int) -> tuple[JobArray, ...]:
    """The arrays of the first `count` elements alone."""
    kept = (replace(one, count=min(one.count, count - one.first)) for one in arrays)
    return tuple(one for one in kept if one.count > 0)


def _share(total: int, parts: int, number: int) -> int:
    """What part `number` gets when total is dealt out evenly."""
    return total // parts + (number < total % parts)
