"""Draws a part of the samples near values that the user believes in.

Half of the trials take the stream's sample as it is, so that a wrong belief costs at most the
other half. The stream never moves for it: a trial's own seed decides, and perturbs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from detslurm.config.points import Space, entries, fitted, with_value
from detslurm.config.spaces import bounds, is_constant, is_group, place_among
from detslurm.searcher.hyperparameters import Sample, draw
from detslurm.searcher.mt19937 import RandomStream

# The standard deviation as a part of the range, and the chance of a category beyond its share.
_SPREAD = {"low": 1 / 4, "medium": 1 / 8, "high": 1 / 16}
_CHANCE = {"low": 1 / 2, "medium": 3 / 4, "high": 7 / 8}


class Prior:
    """The section `prior` of a searcher, over its space."""

    def __init__(self, space: Space, given: Mapping[str, Any]) -> None:
        self._beliefs = [
            (route, spec, fitted(spec, value["about"]), value.get("confidence", "medium"))
            for _, route, spec, value in entries(space, given)
            if route is not None
        ]

    def applied(self, sample: Sample, seed: int) -> Sample:
        """The sample, or a sample near the believed values, by the trial's seed."""
        stream = RandomStream(seed)
        if stream.below(2):
            return sample
        for route, spec, about, confidence in self._beliefs:
            sample = with_value(sample, route, _near(spec, about, confidence, stream))
        return sample


def _near(spec: Mapping[str, Any], about: Any, confidence: str, stream: RandomStream) -> Any:
    """A value near to `about`; it never leaves the range."""
    if spec["type"] in ("categorical", "choice"):
        if stream.uniform(0.0, 1.0) >= _CHANCE[confidence]:
            return draw({"": spec}, stream)[""]
        place = place_among(spec["vals"], about) if spec["type"] == "choice" else None
        return about if place is None else _near_val(spec["vals"][place], about, confidence, stream)
    low, high = bounds(spec)
    spread = _SPREAD[confidence]
    if spec["type"] == "log":
        exponent = math.log(max(about, sys.float_info.min)) / math.log(spec["base"])
        value = spec["base"] ** _normal(exponent, spread, stream, spec["minval"], spec["maxval"])
    elif spec["type"] == "double":
        value = _normal(about, spread, stream, low, high)
    else:  # half a step on both sides, so that the ends are as likely as other integers
        value = round(_normal(about, spread, stream, low - 0.5, high + 0.5))
    return min(max(value, low), high)


def _near_val(val: Any, about: Any, confidence: str, stream: RandomStream) -> Any:
    if is_group(val):
        return {k: _near_val(val[k], about[k], confidence, stream) for k in sorted(val)}
    return about if is_constant(val) else _near(val, about, confidence, stream)


def _normal(mean: float, spread: float, stream: RandomStream, low: float, high: float) -> float:
    """A normal number within the range, of which `spread` is the standard deviation's part."""
    mean = min(max(mean, low), high)
    while True:  # at least four of ten numbers are within the range
        radius = math.sqrt(-2.0 * math.log(1.0 - stream.uniform(0.0, 1.0)))
        deviate = radius * math.cos(2.0 * math.pi * stream.uniform(0.0, 1.0))
        value = mean + spread * (high - low) * deviate
        if low <= value <= high:
            return value
