"""The trials of the searchers whose trials are known from the start: single, random, grid.

A trial's hyperparameters and seed are a pure function of the configuration and the trial's index,
so that nothing needs to be written for a trial until it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.searcher.hyperparameters import Grid, Sample

if TYPE_CHECKING:
    from detslurm.searcher.first import PointsThenGrid

RUNNABLE = ("single", "random", "grid")


def decides_by_results(searcher: Mapping[str, Any]) -> bool:
    """Return whether results decide which trials there will be, so that a search needs its log, by
    the configuration's section `searcher`."""
    return searcher["name"] not in RUNNABLE or bool(searcher.get("stop"))


class TrialPlan(msgspec.Struct, frozen=True):
    """The work of one trial.

    Attributes:
        hparams: Its hyperparameters.
        seed: Its seed.
        request_id: Its name for the search, a UUID that follows from the experiment's seed.
    """

    hparams: Sample
    seed: int
    request_id: str


def trial_count(searcher: Mapping[str, Any], space: Mapping[str, Any]) -> int:
    """Return how many trials a search asks for, by the configuration's section `searcher` and the
    `space`, its section `hyperparameters`."""
    name = searcher["name"]
    if name == "single":
        return 1
    if name == "grid":
        return len(grid_of(searcher, space))
    return int(searcher["max_trials"])


def grid_of(searcher: Mapping[str, Any], space: Mapping[str, Any]) -> Grid | PointsThenGrid:
    """The points of a grid search, those that are tried first included."""
    if not (first := searcher.get("first")):
        return Grid(space)
    from detslurm.searcher.first import PointsThenGrid  # only here: runners start without it

    return PointsThenGrid(space, first)
