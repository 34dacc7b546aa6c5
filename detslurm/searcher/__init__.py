"""Search methods as pure functions: no I/O, no clock, seeded randomness."""

from typing import Any

from detslurm.searcher.custom_method import (
    Close,
    Create,
    ExitedReason,
    Operation,
    Progress,
    SearcherState,
    SearchMethod,
    Shutdown,
    ValidateAfter,
)
from detslurm.searcher.hyperparameters import Grid, draw
from detslurm.searcher.search import Search
from detslurm.searcher.state import State, TrialState
from detslurm.searcher.stream import RandomStream
from detslurm.searcher.trials import RUNNABLE, TrialPlan, trial_count, trial_plan

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
    "SearcherState",
    "Shutdown",
    "State",
    "TrialPlan",
    "TrialState",
    "ValidateAfter",
    "draw",
    "trial_count",
    "trial_plan",
]

_RUNNERS = ("LocalSearchRunner", "RemoteSearchRunner")


def __getattr__(name: str) -> Any:
    # The runners submit jobs, so they live far above this package; users find them here.
    if name not in _RUNNERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("detslurm.sdk.search_runners"), name)
