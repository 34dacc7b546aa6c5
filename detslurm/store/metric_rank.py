"""The order of metrics, from the best to the worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def metric_rank(value: float, smaller_is_better: bool) -> tuple[int, float]:
    """The key that sorts metrics, the best first; NaN comes last, and infinities before it: both
    are of a training that diverged, whichever direction is better."""
    if math.isfinite(value):
        return 0, value if smaller_is_better else -value
    return 2 if math.isnan(value) else 1, 0.0


def better(one: float, other: float | None, smaller_is_better: bool) -> bool:
    """Whether `one` is strictly better than `other`; None is worse than all."""
    if other is None:
        return True
    return metric_rank(one, smaller_is_better) < metric_rank(other, smaller_is_better)


def first_best(
    candidates: Iterable[T], value_of: Callable[[T], float | None], smaller_is_better: bool
) -> T | None:
    """The candidate with the best value, the first of equals; None where none has a value."""
    rated = [(value, one) for one in candidates if (value := value_of(one)) is not None]
    best = min(rated, key=lambda pair: metric_rank(pair[0], smaller_is_better), default=None)
    return best[1] if best else None
