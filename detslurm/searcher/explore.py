"""How a copy's hyperparameters differ from its original's: some drawn again, numbers perturbed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.config.spaces import bounds, is_constant, is_group, place_among
from detslurm.searcher.hyperparameters import Sample, Space, draw
from detslurm.searcher.mt19937 import RandomStream


def explore(
    space: Space, sample: Sample, stream: RandomStream, resample: float, factor: float
) -> Sample:
    """A new sample near `sample`: each value is drawn again with probability `resample`, else
    numbers are multiplied by 1 + factor or 1 - factor, within their range. A choice that is not
    drawn again keeps its val, whose own values change in the same way."""
    return {
        key: _explore_one(space[key], sample[key], stream, resample, factor)
        for key in sorted(space)
    }


def _explore_one(
    spec: Any, value: Any, stream: RandomStream, resample: float, factor: float
) -> Any:
    if is_group(spec):
        return explore(spec, value, stream, resample, factor)
    if is_constant(spec):
        return value
    place = place_among(spec["vals"], value) if spec["type"] == "choice" else 0
    if stream.uniform(0.0, 1.0) < resample or place is None:
        return draw({"": spec}, stream)[""]
    if spec["type"] == "choice":
        return _explore_one(spec["vals"][place], value, stream, resample, factor)
    if spec["type"] == "categorical":
        return value
    return _shaken(spec, value * (1 + factor if stream.below(2) else 1 - factor))


def _shaken(spec: Mapping[str, Any], value: float) -> Any:
    low, high = bounds(spec)
    value = min(max(value, low), high)
    return round(value) if spec["type"] == "int" else value
