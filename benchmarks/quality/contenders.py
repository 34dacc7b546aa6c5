"""Our search methods on a problem, run by the searcher's own simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.quality.problem import Point, Problem, Report
from detslurm.searcher import TrialPlan
from detslurm.searcher.optuna.bridge import Bridge
from detslurm.searcher.simulation import VirtualSearch

METHODS: dict[str, Mapping[str, Any]] = {
    "random": {"name": "random"},
    "adaptive_asha": {"name": "adaptive_asha"},
    "async_halving": {"name": "async_halving", "num_rungs": 3},
    "adaptive_asha + tpe": {"name": "adaptive_asha", "sampler": "tpe"},
}
"""Our methods by name: the section `searcher`, without what depends on the problem."""

ENDLESS = 4000
"""More trials than any budget pays for: the budget ends a search, not the number of its trials."""


def config_of(method: str, problem: Problem, workers: int, seed: int) -> dict[str, Any]:
    """Return the configuration of a search."""
    searcher = {
        "metric": "loss",
        "max_trials": ENDLESS,
        "max_concurrent_trials": workers,
        "max_length": {"epochs": problem.units},
        **METHODS[method],
    }
    return {
        "searcher": searcher,
        "hyperparameters": problem.space,
        "reproducibility": {"experiment_seed": seed},
    }


def reports(method: str, problem: Problem, workers: int, seed: int) -> Iterator[Report]:
    """Yield the reports of a search by one of our methods, in order of virtual time."""
    config, curves = config_of(method, problem, workers, seed), _Trainings(problem, seed)
    suggest = None
    if "sampler" in config["searcher"]:
        suggest = Bridge(config["searcher"], problem.space, seed).suggest
    for trial in VirtualSearch(config, workers, curves, suggest=suggest).steps():
        assert trial.metric is not None
        yield Report(trial.end, curves.points[trial.trial - 1], trial.units, trial.metric)


class _Trainings:
    """A problem's trainings as the simulation's curves; it notes each trial's point."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem, self._seed = problem, seed
        self.points: dict[int, Point] = {}

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        self.points[index] = plan.hparams
        return self._problem.loss(plan.hparams, units, self._seed)

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        return self._problem.seconds(plan.hparams, start, end)
