"""The summary of a trial's metrics, in the form that Determined gives it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from detslurm.store import MetricRow, as_float, flat, is_number

_NAMES = {"training": "avg_metrics", "validation": "validation_metrics"}


def summary(rows: Iterable[MetricRow]) -> dict[str, Any]:
    """Group -> metric -> its figures, over rows in the order of steps."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        group = found.setdefault(_NAMES.get(row.group, row.group), {})
        for name, value in flat(row.metrics):
            if is_number(value):
                number = as_float(value)
                group.setdefault(name, []).append(number if math.isinf(number) else value)
    return {
        group: {name: _figures(values) for name, values in metrics.items()}
        for group, metrics in found.items()
    }


def _figures(values: list[float]) -> dict[str, Any]:
    total = sum(values)
    known = [value for value in values if not math.isnan(value)] or values
    return {
        "count": len(values),
        "sum": total,
        "mean": total / len(values),
        "min": min(known),
        "max": max(known),
        "last": values[-1],
        "type": "number",
    }
