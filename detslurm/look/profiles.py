"""The profiler's records, as series in time.

Needs numpy: other modules import this one where they use it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detslurm.store import ProfileRow
from detslurm.store.curve import flat, is_number
from detslurm.store.series import Series


def profile_series(rows: Sequence[ProfileRow]) -> list[Series]:
    """Each figure of each node; `rows` are in the order of time.

    The metrics are named "node.figure", and "node.device.figure" where a node has several such
    things. In the place of steps are whole seconds since the first row.
    """
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in flat(row.metrics):
            if is_number(value):
                key = (row.group, f"{row.node}.{name}")
                points.setdefault(key, []).append((row.time, float(value)))
    return [_series(key, found, rows[0].time) for key, found in points.items()]


def _series(key: tuple[str, str], points: Sequence[tuple[float, float]], begin: float) -> Series:
    times, values = np.array(points).T
    return Series(*key, (times - begin).astype(np.int64), values, times, len(points))
