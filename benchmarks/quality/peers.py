"""Search methods of other projects, each asked and told as its own documentation shows.

`python -m benchmarks.quality.player` runs them in an environment of their own, so nothing here
imports detslurm, and each project is imported only by its own methods.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

from benchmarks.quality.problem import Problem
from benchmarks.quality.virtual import Training


def shortest(units: int) -> int:
    """Return how long the shortest training of methods that stop trials is: 3 of 100 units."""
    return max(units * 3 // 100, 1)


def rungs(units: int) -> list[int]:
    """Return where methods that stop trials look at them: three times as far each, to the end."""
    first = shortest(units)
    lengths = [first * 3**power for power in range(units) if first * 3**power < units]
    return [*lengths, units]


class OptunaStudy:
    """A study of Optuna, with TPE or GP, and a pruner that stops trials or none."""

    def __init__(self, problem: Problem, seed: int, sampler: str, pruned: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        kinds = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
        pruner = optuna.pruners.NopPruner()
        self._rungs = [problem.units]
        if pruned and problem.units > 1:
            first = shortest(problem.units)
            pruner = optuna.pruners.HyperbandPruner(first, max_resource=problem.units)
            self._rungs = rungs(problem.units)
        self._study = optuna.create_study(sampler=kinds[sampler](seed=seed), pruner=pruner)
        self._pruned = optuna.trial.TrialState.PRUNED
        self._kinds = {name: _optunas(spec) for name, spec in problem.space.items()}
        self._trials: dict[str, Any] = {}
        self._next: deque[Training] = deque()

    def ask(self) -> Training:
        """Go on with the trial that was just judged, or begin another."""
        if self._next:
            return self._next.popleft()
        trial = self._study.ask(self._kinds)
        name = str(trial.number)
        self._trials[name] = trial
        return Training(name, trial.params, 0, self._rungs[0])

    def tell(self, training: Training, loss: float) -> None:
        """Report the loss, and ask whether the trial goes on."""
        trial = self._trials[training.trial]
        trial.report(loss, training.end)
        if training.end == self._rungs[-1]:
            self._study.tell(trial, loss)
        elif trial.should_prune():
            self._study.tell(trial, state=self._pruned)
        else:
            further = self._rungs[self._rungs.index(training.end) + 1]
            self._next.append(training._replace(start=training.end, end=further))


def _optunas(spec: Mapping[str, Any]) -> Any:
    from optuna import distributions

    if spec["type"] == "categorical":
        return distributions.CategoricalDistribution(spec["vals"])
    kinds = {"int": distributions.IntDistribution, "double": distributions.FloatDistribution}
    return kinds[spec["type"]](spec["minval"], spec["maxval"])


class NepsOptimizer:
    """An optimizer of NePS by its `AskAndTell`; a promoted trial goes on from its checkpoint."""

    def __init__(self, problem: Problem, seed: int, algorithm: str) -> None:
        import neps
        import numpy
        import torch

        logging.getLogger("neps").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        # Its samplers draw from the global generators.
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        fields = {name: _neps(neps, spec) for name, spec in problem.space.items()}
        units = problem.units
        fields["units"] = neps.IntegerFidelity(lower=shortest(units), upper=units)
        space = type("Space", (neps.PipelineSpace,), fields)()
        self._optimizer = neps.AskAndTell(getattr(neps.algorithms, algorithm)(space))
        self._length: dict[str, int] = {}

    def ask(self) -> Training:
        """Ask for a sample, or for a promotion."""
        trial = self._optimizer.ask()
        point = dict(trial.config)
        units = int(point.pop("units"))
        start = self._length.get(trial.metadata.previous_trial_id or "", 0)
        self._length[trial.metadata.id] = units
        return Training(trial.metadata.id, point, start, units)

    def tell(self, training: Training, loss: float) -> None:
        """Tell the loss."""
        self._optimizer.tell(training.trial, loss)


def _neps(neps: Any, spec: Mapping[str, Any]) -> Any:
    if spec["type"] == "categorical":
        return neps.Categorical(choices=tuple(spec["vals"]))
    kinds = {"int": neps.Integer, "double": neps.Float}
    return kinds[spec["type"]](lower=spec["minval"], upper=spec["maxval"])


class SyneTuneScheduler:
    """A scheduler of Syne Tune that stops trials."""

    def __init__(self, problem: Problem, seed: int, scheduler: str) -> None:
        import numpy
        from syne_tune.config_space import choice, randint, uniform
        from syne_tune.optimizer import baselines

        warnings.simplefilter("ignore")
        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        numpy.random.seed(seed)  # brackets are drawn from the global generator
        kinds = {
            "categorical": lambda spec: choice(list(spec["vals"])),
            "int": lambda spec: randint(spec["minval"], spec["maxval"]),
            "double": lambda spec: uniform(spec["minval"], spec["maxval"]),
        }
        space = {name: kinds[spec["type"]](spec) for name, spec in problem.space.items()}
        self._scheduler = getattr(baselines, scheduler)(
            space, metric="loss", time_attr="units", max_t=problem.units,
            grace_period=shortest(problem.units), random_seed=seed,
        )  # fmt: skip
        self._rungs = rungs(problem.units)
        self._numbers = count()
        self._trials: dict[str, Any] = {}
        self._next: deque[Training] = deque()

    def ask(self) -> Training:
        """Go on with the trial that was just judged, or begin another."""
        from datetime import datetime

        from syne_tune.backend.trial_status import Trial

        if self._next:
            return self._next.popleft()
        suggestion = self._scheduler.suggest()
        trial = Trial(next(self._numbers), suggestion.config, datetime.now())
        self._scheduler.on_trial_add(trial)
        self._trials[str(trial.trial_id)] = trial
        return Training(str(trial.trial_id), suggestion.config, 0, self._rungs[0])

    def tell(self, training: Training, loss: float) -> None:
        """Report the loss; the scheduler decides whether the trial goes on."""
        trial, result = self._trials[training.trial], {"loss": loss, "units": training.end}
        decision = self._scheduler.on_trial_result(trial, result)
        if training.end == self._rungs[-1]:
            self._scheduler.on_trial_complete(trial, result)
        elif decision == "STOP":
            self._scheduler.on_trial_remove(trial)
        else:
            further = self._rungs[self._rungs.index(training.end) + 1]
            self._next.append(training._replace(start=training.end, end=further))


PEERS: dict[str, partial[Any]] = {
    "Optuna tpe": partial(OptunaStudy, sampler="tpe", pruned=False),
    "Optuna tpe, hyperband": partial(OptunaStudy, sampler="tpe", pruned=True),
    "NePS hyperband": partial(NepsOptimizer, algorithm="hyperband"),
    "NePS asha": partial(NepsOptimizer, algorithm="asha"),
    "Syne Tune ASHA": partial(SyneTuneScheduler, scheduler="ASHA"),
}
"""The methods by name; each is called with a problem and a seed."""

SLOW = ("NePS hyperband",)
"""Methods whose searches take 20 seconds of a processor each: the long form has them."""
