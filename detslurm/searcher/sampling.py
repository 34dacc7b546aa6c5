"""The samples of a search: a pure function of the seed and the order of creation."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from detslurm.searcher.hyperparameters import Sample, draw, draws_of, pass_over
from detslurm.searcher.mt19937 import RandomStream
from detslurm.searcher.trials import TrialPlan, grid_of

if TYPE_CHECKING:
    from detslurm.searcher.prior import Prior

_OWN_WORDS = 5  # a trial's request id and its seed


class Samples:
    """Plans by index. All come from one stream, so that each lies behind the ones before it: those
    that are not asked for are passed over, which is cheaper than drawing them."""

    def __init__(self, searcher: Mapping[str, Any], space: Mapping[str, Any], seed: int) -> None:
        self._space, self._seed = space, seed
        self._grid = grid_of(searcher, space) if searcher["name"] == "grid" else None
        self._first = () if self._grid else searcher.get("first") or ()
        self._prior = _prior_of(searcher, space)
        self._draws = [] if self._grid else draws_of(space)
        self._ahead = RandomStream(seed)
        self._starts = array("Q", [0])  # words before each trial, as far as `_ahead` is
        self._drawn: dict[int, TrialPlan] = {}

    def plan(self, index: int) -> TrialPlan:
        """The plan of trial `index`, from 0 in order of creation."""
        if index not in self._drawn:
            while len(self._starts) <= index:
                self._pass_over()
                self._starts.append(self._ahead.drawn)
            self._drawn[index] = self._plan(index)
        return self._drawn[index]

    def _plan(self, index: int) -> TrialPlan:
        if index == len(self._starts) - 1:
            plan = self._draw(index, self._ahead)
            self._starts.append(self._ahead.drawn)
            return plan
        stream = RandomStream(self._seed)
        stream.skip(self._starts[index])
        return self._draw(index, stream)

    def _pass_over(self) -> None:
        pass_over(self._draws, self._ahead)
        self._ahead.skip(_OWN_WORDS)

    def _draw(self, index: int, stream: RandomStream) -> TrialPlan:
        # The order of draws is fixed: sample, request id, seed (a grid's points draw nothing).
        sample: Sample = self._grid.point(index) if self._grid else draw(self._space, stream)
        request_id = str(stream.uuid4())
        seed = stream.below(2**31)
        if self._prior is not None:
            sample = self._prior.applied(sample, seed)
        if index < len(self._first):
            from detslurm.searcher.first import completed  # only here: runners start without it

            sample = completed(self._space, self._first[index], sample)
        return TrialPlan(hparams=sample, seed=seed, request_id=request_id)


def _prior_of(searcher: Mapping[str, Any], space: Mapping[str, Any]) -> Prior | None:
    if not (given := searcher.get("prior")):
        return None
    from detslurm.searcher.prior import Prior  # only here: runners start without it

    return Prior(space, given)
