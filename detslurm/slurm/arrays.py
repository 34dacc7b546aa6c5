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


def turns(counts: Sequence[int], at_once: int | None) -> list[tuple[int | None, int | None]]:
    """Of arrays with these counts of elements, which share what may run at once: the throttle of
    each, and the number of the array that must end before it starts.

    Shares are in proportion; those that are too small for a share wait for each other.
    """
    whole = sum(counts)
    if at_once is None or whole <= at_once:
        return [(None, None)] * len(counts)
    shares = [at_once * count // whole for count in counts]
    left = at_once - sum(shares)  # at least 1 where a share was rounded down to 0
    small = [number for number, share in enumerate(shares) if not share]
    if not small:
        shares[shares.index(max(shares))] += left
    after = dict(zip(small[left:], small, strict=False))
    return [
        (max(share, 1) if max(share, 1) < count else None, after.get(number))
        for number, (share, count) in enumerate(zip(shares, counts, strict=True))
    ]


def dealt(total: int, counts: Sequence[int]) -> list[int]:
    """How many elements of each of several arrays may run at once, where they share `total`: what
    small arrays can't use goes to larger ones. Each has 1 at least, for 0 would be no limit."""
    shares, left = [1] * len(counts), total
    smallest_first = sorted(range(len(counts)), key=counts.__getitem__)
    for done, number in enumerate(smallest_first, 1):
        even = left // (len(counts) - done + 1)
        shares[number] = max(even if done == len(counts) else min(counts[number], even), 1)
        left -= shares[number]
    return shares


def _share(total: int, parts: int, number: int) -> int:
    """The share of part `number` when total is dealt out evenly."""
    return total // parts + (number < total % parts)
