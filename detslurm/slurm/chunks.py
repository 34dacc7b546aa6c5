"""Cutting an experiment's trials into arrays that the cluster accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """One array: trials first .. first+count-1 of the plan."""

    first: int
    count: int
    throttle: int | None = None  # how many run at once; None = all
    after: int | None = None  # number of the chunk that must end before this one starts


def plan_chunks(
    trials: int,
    *,
    max_array_size: int,
    max_array_tasks: int | None = None,
    throttle: int | None = None,
) -> tuple[Chunk, ...]:
    """As few arrays as possible, about equal, which together keep the throttle.

    Where there are more arrays than may run at once, the later ones wait for earlier ones.
    """
    if trials < 1:
        return ()
    size = max(1, min(max_array_size, max_array_tasks or max_array_size))
    arrays = -(-trials // size)
    lanes = arrays if throttle is None else min(arrays, throttle)
    chunks: list[Chunk] = []
    first = 0
    for number in range(arrays):
        count = _share(trials, arrays, number)
        share = None if throttle is None else _share(throttle, lanes, number % lanes)
        limited = share if share is not None and share < count else None
        after = number - lanes if number >= lanes else None
        chunks.append(Chunk(first, count, limited, after))
        first += count
    return tuple(chunks)


def _share(total: int, parts: int, number: int) -> int:
    """What part `number` gets when total is dealt out evenly."""
    return total // parts + (number < total % parts)
