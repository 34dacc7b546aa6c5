"""Search methods as pure functions: no I/O, no clock, seeded randomness."""

from detslurm.searcher.hyperparameters import Grid, draw
from detslurm.searcher.search import Search
from detslurm.searcher.state import State, TrialState
from detslurm.searcher.stream import RandomStream
from detslurm.searcher.trials import RUNNABLE, TrialPlan, trial_count, trial_plan

__all__ = [
    "RUNNABLE",
    "Grid",
    "RandomStream",
    "Search",
    "State",
    "TrialPlan",
    "TrialState",
    "draw",
    "trial_count",
    "trial_plan",
]
