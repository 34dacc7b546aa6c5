"""Axes of a plot in text: where a value stands, and the round numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_LARGEST: Final = 1e300  # of the values that an axis shows: beyond, sums of two overflow
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Scale(NamedTuple):
    """An axis from `low` to `high`, which is above it; both are positive on a logarithmic axis."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], *, log: bool = False) -> Scale | None:
        """The axis that has all values which it can show; None if there are none."""
        found = [value for value in values if _can_stand(value, log)]
        if not found:
            return None
        low, high = min(found), max(found)
        if _coincide(low, high, log):
            low, high = (low / 2, high * 2) if log else (low - _room(low), high + _room(high))
        return cls(low, high, log)

    def shows(self, value: float) -> bool:
        """Whether the axis can show a value: NaN and infinities it can't."""
        return _can_stand(value, self.log)

    def share(self, value: float) -> float:
        """Where a value stands: 0 at the beginning, 1 at the end."""
        if self.log:
            low = math.log(self.low)
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> list[float]:
        """About `count` round numbers on the axis; two at least unless it is too short."""
        if not self.log:
            return _enough_ticks(self.low, self.high, count)
        if self.high / self.low < 100:
            found = _log_ticks(self.low, self.high, (1, 2, 5), 1)
            return found if len(found) > 1 else _enough_ticks(self.low, self.high, count)
        decades = math.log10(self.high) - math.log10(self.low)
        return _log_ticks(self.low, self.high, (1,), max(1, math.ceil(decades / max(count, 1))))


def _can_stand(value: float, log: bool) -> bool:
    return abs(value) <= _LARGEST and (value >= 1 / _LARGEST or not log)


def _coincide(low: float, high: float, log: bool) -> bool:
    """Whether they are equal on any axis, computed as `Scale.share` does."""
    return math.log(low) == math.log(high) if log else low == high


def _room(value: float) -> float:
    return abs(value) / 10 or 1.0


def _enough_ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers lie badly in some ranges: shorter steps then."""
    tries = (_linear_ticks(low, high, more) for more in range(count, 4 * count))
    return next((found for found in tries if len(found) >= min(count, 3)), [low, high])


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    step = _round_step((high - low) / max(count, 1))
    if step <= 0:
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(n * step, _decimals(step)) for n in range(first, last + 1)]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... that is not below `least`."""
    if least <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float, factors: Sequence[int], every: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = (n * 10.0**power for power in range(first, last + 1, every) for n in factors)
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Ticks as people write them, all in one unit, with the digits that distinguish them: 0, 500,
    1000; 0, 2.5k, 5k; 1e-05."""
    largest = max(map(abs, ticks), default=0.0)
    smallest = min((abs(tick) for tick in ticks if tick), default=0.0)
    step = min((b - a for a, b in pairwise(ticks) if b > a), default=largest)
    if _uneven(smallest, largest):
        return [f"{tick:.3g}" for tick in ticks]
    if largest >= 1e15 or (largest and largest < 1e-3):
        digits = max(3, _power(largest) - _power(step) + 1)
        return [f"{tick:.{digits}g}" for tick in ticks]
    unit, suffix = next(((u, s) for u, s in _UNITS if largest >= max(u, 1e4)), (1.0, ""))
    places = _decimals(step / unit)
    return [f"{tick / unit:.{places}f}{suffix}" if tick else "0" for tick in ticks]


def _uneven(smallest: float, largest: float) -> bool:
    """Whether one unit can't serve all of them, as on a logarithmic axis."""
    return bool(smallest) and largest / smallest >= 1e3


def _decimals(step: float) -> int:
    """The number of decimals that distinguish multiples of `step`."""
    if step <= 0:
        return 0
    return max(0, -_power(step))


def _power(value: float) -> int:
    """The power of ten of the first digit of a positive number."""
    return math.floor(math.log10(value) + 1e-9)
