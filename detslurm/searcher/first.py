"""The points that a search tries first, completed to whole samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detslurm.config.points import Space, entries, fitted, with_value
from detslurm.searcher.hyperparameters import Grid, Sample

Point = Mapping[str, Any]


def completed(space: Space, point: Point, sample: Sample) -> Sample:
    """The point; a hyperparameter that it does not name has the value of the sample."""
    for _, route, spec, value in entries(space, point):
        if route is not None:
            sample = with_value(sample, route, fitted(spec, value))
    return sample


class PointsThenGrid:
    """Points that are tried first, then all other points of the grid in their order.

    A point has the grid's largest values for the hyperparameters that it does not name.
    """

    def __init__(self, space: Space, first: Sequence[Point]) -> None:
        self._grid = Grid(space)
        self._first = [completed(space, point, self._grid.point(0)) for point in first]
        found = {self._grid.index(sample) for sample in self._first}
        self._taken = sorted(index for index in found if index is not None)

    def __len__(self) -> int:
        return len(self._first) + len(self._grid) - len(self._taken)

    def point(self, index: int) -> Sample:
        """The sample of one trial, counted from 0."""
        if index < len(self._first):
            return self._first[index]
        index -= len(self._first)
        for taken in self._taken:
            index += taken <= index
        return self._grid.point(index)
