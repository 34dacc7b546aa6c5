"""Rungs of a search by halving: where they are, and the ordered results on each."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from detslurm.searcher.state import Rung, State


def rung_units(num_rungs: int, max_units: int, divisor: float) -> list[int]:
    """The length at which each rung stands, lowest first; the last is `max_units`."""
    return [max(int(max_units / divisor**below), 1) for below in reversed(range(num_rungs))]


def longer_units(units: Sequence[int], max_units: int, divisor: float) -> list[int]:
    """The rungs of a bracket whose trials may train longer than before, to `max_units`: the same,
    and above them each `divisor` times as far as the one below, the last at `max_units`."""
    longer = [*units]
    while longer[-1] < max_units:
        longer.append(min(max(int(longer[-1] * divisor), longer[-1] + 1), max_units))
    return longer


def insert(state: State, rung: Rung, index: int, score: float, before_equals: bool) -> int:
    """Enter a trial's result; its place, counted from the best."""
    order = -rung.seen if before_equals else rung.seen
    rung.seen += 1
    result = (score, order, index)
    place = bisect.bisect_left(rung.results, result)
    rung.results.insert(place, result)
    trial = state.trials[index]
    trial.rung_results = [*trial.rung_results, (score, order)]
    return place


def remove(state: State, rungs: list[Rung], index: int) -> None:
    """Take all results of a trial out of the rungs."""
    trial = state.trials[index]
    for rung, (score, order) in zip(rungs, trial.rung_results, strict=False):
        del rung.results[bisect.bisect_left(rung.results, (score, order, index))]
    trial.rung_results = []
