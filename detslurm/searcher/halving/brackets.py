"""How trials are shared out over brackets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detslurm.searcher.halving.rungs import longer_units, rung_units
from detslurm.searcher.method import length_of
from detslurm.searcher.state import Bracket


@dataclass(frozen=True)
class BracketPlan:
    """A bracket before it begins."""

    units: Sequence[int]
    max_trials: int
    concurrency: int


def bracket_plans(searcher: Mapping[str, Any]) -> list[BracketPlan]:
    """The brackets of an async_halving (one) or an adaptive_asha."""
    divisor, longest = searcher.get("divisor", 4), max_units(searcher)
    counts = rung_counts(searcher)
    units = [rung_units(rungs, longest, divisor) for rungs in counts]
    return _plans(searcher, units, share_trials(searcher["max_trials"], divisor, counts))


def longer_plans(searcher: Mapping[str, Any], brackets: Sequence[Bracket]) -> list[BracketPlan]:
    """The brackets of a search that goes on: those that it had, with more rungs on top where its
    trials may train longer, and with their shares of the trials that are new."""
    divisor, longest = searcher.get("divisor", 4), max_units(searcher)
    units = [longer_units([r.units for r in b.rungs], longest, divisor) for b in brackets]
    wanted = share_trials(searcher["max_trials"], divisor, [len(b.rungs) for b in brackets])
    return _plans(searcher, units, larger_shares([b.max_trials for b in brackets], wanted))


def _plans(
    searcher: Mapping[str, Any], units: Sequence[Sequence[int]], shares: Sequence[int]
) -> list[BracketPlan]:
    divisor, at_once = searcher.get("divisor", 4), searcher.get("max_concurrent_trials", 16)
    if searcher["name"] == "async_halving":
        limits = [first_trials(len(units[0]), shares[0], divisor, at_once)]
    else:
        limits = share_concurrency(at_once, divisor, shares)
    return [
        BracketPlan(units=each, max_trials=share, concurrency=min(limit, share))
        for each, share, limit in zip(units, shares, limits, strict=True)
    ]


def larger_shares(shares: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """How many trials each bracket has once there are as many as are `wanted`: the new trials are
    divided over the brackets, and none gets fewer than it has."""
    left, larger = sum(wanted) - sum(shares), []
    for share, more in zip(shares, wanted, strict=True):
        new = max(min(more - share, left), 0)
        larger.append(share + new)
        left -= new
    return larger


def max_units(searcher: Mapping[str, Any]) -> int:
    """The length of the top rung."""
    units = length_of(searcher)[0] or searcher.get("max_time")
    if not units:
        raise ValueError(f"the {searcher['name']} searcher needs max_length, or max_time")
    return int(units)


def first_trials(num_rungs: int, max_trials: int, divisor: float, atonce: int) -> int:
    """How many trials one bracket creates at first."""
    wanted = atonce if atonce > 0 else max(int(divisor ** (num_rungs - 1)), 1)
    return min(wanted, max_trials)


def rung_counts(searcher: Mapping[str, Any]) -> list[int]:
    """The number of rungs of each bracket, largest first."""
    if searcher["name"] == "async_halving":
        return [searcher["num_rungs"]]
    if given := searcher.get("bracket_rungs"):
        return sorted(given, reverse=True)
    divisor = searcher.get("divisor", 4)
    most = min(
        searcher.get("max_rungs", 5),
        _whole_log(max_units(searcher), divisor) + 1,
        _whole_log(searcher["max_trials"], divisor) + 1,
    )
    mode = searcher.get("mode", "standard")
    least = {"conservative": 1, "standard": (most - 1) // 2 + 1, "aggressive": most}[mode]
    return list(range(most, least - 1, -1))


def share_trials(max_trials: int, divisor: float, counts: Sequence[int]) -> list[int]:
    """How many trials each bracket gets, so that each spends about the same."""
    weights = [divisor ** (rungs - 1) / rungs for rungs in counts]
    shares = [max(int(w / sum(weights) * max_trials), 1) for w in weights]
    shares[0] += max(max_trials - sum(shares), 0)
    return shares


def share_concurrency(atonce: int, divisor: float, shares: Sequence[int]) -> list[int]:
    """How many trials each bracket has at once."""
    if atonce == 0:
        return [max(shares[-1], int(divisor))] * len(shares)
    each, rest = divmod(max(atonce, len(shares)), len(shares))
    return [each + (number < rest) for number in range(len(shares))]


def _whole_log(value: float, base: float) -> int:
    # Exact where `value` is a power of the base, where log(243)/log(3) falls short of 5.
    return int(math.log(value) / math.log(base) + 1e-9)
