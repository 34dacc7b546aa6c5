"""Hartmann's functions of 3 and 6 variables as trainings of 100 units.

A short training's result is off in two ways, as in multi-fidelity Hartmann benchmarks: the
weights of the four wells are smaller by a bias (which changes the order of points), and noise is
added. Both vanish at full length. The larger they are, the less short trainings tell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.quality.problem import Point, Space

Matrix = tuple[tuple[float, ...], ...]

_WEIGHTS = (1.0, 1.2, 3.0, 3.2)
_SCALES: dict[int, Matrix] = {
    3: ((3, 10, 30), (0.1, 10, 35), (3, 10, 30), (0.1, 10, 35)),
    6: (
        (10, 3, 17, 3.5, 1.7, 8),
        (0.05, 10, 17, 0.1, 8, 14),
        (3, 3.5, 1.7, 10, 17, 8),
        (17, 8, 0.05, 10, 0.1, 14),
    ),
}
_CENTRES: dict[int, Matrix] = {
    3: (
        (0.3689, 0.1170, 0.2673),
        (0.4699, 0.4387, 0.7470),
        (0.1091, 0.8732, 0.5547),
        (0.0381, 0.5743, 0.8828),
    ),
    6: (
        (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
        (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
        (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
        (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
    ),
}
MINIMA = {
    3: (-3.86278, (0.114614, 0.555649, 0.852547)),
    6: (-3.32237, (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)),
}
"""The lowest value of each, and where it is."""

MEDIANS = {3: -0.563, 6: -0.102}
"""The median of each over all points."""

HARTMANNS = {
    "hartmann3": (3, 1.0, 0.1),
    "hartmann3-poor": (3, 2.0, 0.3),
    "hartmann6": (6, 1.0, 0.1),
    "hartmann6-poor": (6, 1.5, 0.2),
}
"""The problems: variables, bias, noise. In `-poor` the ranks of points at a quarter of the length
agree with those at full length by 0.5 to 0.6 (Spearman's rho), in the others by 0.8 to 0.9."""


def hartmann(x: Sequence[float], weakened: float = 0.0) -> float:
    """Return the function's value, with all weights smaller by `weakened`."""
    total = 0.0
    for weight, scales, centres in zip(_WEIGHTS, _SCALES[len(x)], _CENTRES[len(x)], strict=True):
        far = sum(a * (v - c) ** 2 for a, v, c in zip(scales, x, centres, strict=True))
        total += (weight - weakened) * math.exp(-far)
    return -total


@dataclass
class Hartmann:
    """A problem of `HARTMANNS`."""

    name: str
    units: int = 100
    full_seconds: float = 100.0

    def __post_init__(self) -> None:
        self.variables, self.bias, self.noise = HARTMANNS[self.name]
        self.names = [f"x{number}" for number in range(self.variables)]
        self.space: Space = {
            name: {"type": "double", "minval": 0.0, "maxval": 1.0} for name in self.names
        }
        self.best = MINIMA[self.variables][0]
        self.median = MEDIANS[self.variables]

    def _x(self, point: Point) -> list[float]:
        return [point[name] for name in self.names]

    def truth(self, point: Point) -> float:
        """Return the loss of a full training."""
        return hartmann(self._x(point))

    def loss(self, point: Point, units: int, seed: int) -> float:
        """Return the loss after `units`; the noise is that of the seed, the point and the units."""
        x, missing = self._x(point), 1.0 - (units - 1) / (self.units - 1)
        drawn = random.Random(f"{seed} {x} {units}").gauss(0.0, 1.0)
        return hartmann(x, self.bias * missing) + self.noise * missing * drawn

    def seconds(self, point: Point, start: int, end: int) -> float:
        """Return a second for each unit."""
        return float(end - start)
