"""The samples of a search: a pure function of the seed and the order of creation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.searcher.hyperparameters import Grid, Sample, draw
from detslurm.searcher.stream import RandomStream
from detslurm.searcher.trials import TrialPlan


class Samples:
    """Plans by index; they are drawn in order, once."""

    def __init__(self, name: str, space: Mapping[str, Any], seed: int) -> None:
        self._space = space
        self._stream = RandomStream(seed)
        self._grid = Grid(space) if name == "grid" else None
        self._drawn: list[TrialPlan] = []

    def plan(self, index: int) -> TrialPlan:
        """The plan of trial `index`, from 0 in order of creation."""
        while len(self._drawn) <= index:
            self._drawn.append(self._draw(len(self._drawn)))
        return self._drawn[index]

    def _draw(self, index: int) -> TrialPlan:
        # The order of draws is fixed: sample, request id, seed (a grid's points draw nothing).
        sample: Sample = self._grid.point(index) if self._grid else draw(self._space, self._stream)
        request_id = str(self._stream.uuid4())
        return TrialPlan(hparams=sample, seed=self._stream.below(2**31), request_id=request_id)
