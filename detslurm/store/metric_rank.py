"""The order of metrics, from the best to the worst."""

from __future__ import annotations

import math


def metric_rank(value: float, smaller_is_better: bool) -> tuple[int, float]:
    """What metrics are sorted by, the best first; NaN comes last, and infinities before it: both
    are of a training that diverged, whichever direction is the better one."""
    if math.isfinite(value):
        return 0, value if smaller_is_better else -value
    return 2 if math.isnan(value) else 1, 0.0
