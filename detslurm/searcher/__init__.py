"""Search methods as pure functions: no I/O, no clock, seeded randomness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detslurm._base.lazy import lazy_names

if TYPE_CHECKING:
    from detslurm.searcher.custom_method import ExitedReason, SearcherState, SearchMethod
    from detslurm.searcher.hyperparameters import Grid, draw
    from detslurm.searcher.mt19937 import RandomStream
    from detslurm.searcher.operations import (
        Close,
        Create,
        Operation,
        Progress,
        Shutdown,
        ValidateAfter,
    )
    from detslurm.searcher.search import Search
    from detslurm.searcher.state import SearchTrial, State
    from detslurm.searcher.trials import RUNNABLE, TrialPlan, decides_by_results, trial_count

    # The runners submit jobs, so they live far above this package; users find them here.
    LocalSearchRunner: Any
    RemoteSearchRunner: Any
    SearchRunner: Any

__all__ = [
    "RUNNABLE",
    "Close",
    "Create",
    "ExitedReason",
    "Grid",
    "LocalSearchRunner",
    "Operation",
    "Progress",
    "RandomStream",
    "RemoteSearchRunner",
    "Search",
    "SearchMethod",
    "SearchRunner",
    "SearchTrial",
    "SearcherState",
    "Shutdown",
    "State",
    "TrialPlan",
    "ValidateAfter",
    "decides_by_results",
    "draw",
    "trial_count",
]

_HOMES = {
    "custom_method": ("ExitedReason", "SearchMethod", "SearcherState"),
    "operations": ("Close", "Create", "Operation", "Progress", "Shutdown", "ValidateAfter"),
    "hyperparameters": ("Grid", "draw"),
    "search": ("Search",),
    "state": ("State", "SearchTrial"),
    "mt19937": ("RandomStream",),
    "trials": ("RUNNABLE", "TrialPlan", "decides_by_results", "trial_count"),
    "detslurm.sdk.searches.runners": ("LocalSearchRunner", "RemoteSearchRunner", "SearchRunner"),
}


# A thousand runners and ranks need two or three of these.
__getattr__ = lazy_names(__name__, _HOMES)
