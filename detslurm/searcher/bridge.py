"""Optuna's samplers and pruners, asked by a process that lives for one question.

What is known of the trials makes an in-memory study; the sampler's generators go on where the
last one left them. A search of one trial at a time thus gives, number by number, what Optuna
gives with the same sampler and seed. Only who runs a search by Optuna imports it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from detslurm.searcher.generators import Position, advance, positions
from detslurm.searcher.hyperparameters import Sample
from detslurm.searcher.optuna_space import distributions, to_params, to_sample

SAMPLERS = {
    "brute_force": "BruteForceSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
    "tpe": "TPESampler",
}
PRUNERS = {
    "hyperband": "HyperbandPruner",
    "median": "MedianPruner",
    "nop": "NopPruner",
    "patient": "PatientPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "threshold": "ThresholdPruner",
    "wilcoxon": "WilcoxonPruner",
}
# These keep notes in the study, which are had again by asking for all trials once more.
_REPLAYED = frozenset({"cmaes", "nsgaii", "nsgaiii", "qmc"})


class BridgeError(Exception):
    """Optuna is missing, or can't do what the configuration asks; says what to change."""


class Known(msgspec.Struct, omit_defaults=True):
    """What a search by Optuna knows of one trial; a metric that is no number is None."""

    hparams: Sample
    state: Literal["running", "complete", "pruned", "failed"] = "running"
    reports: list[tuple[int, float | None]] = []
    notes: dict[str, Any] = {}


class History(msgspec.Struct, omit_defaults=True):
    """All that was asked and told, in order: trial i sampled, or ~i (-i - 1) ended."""

    trials: dict[int, Known] = {}
    order: list[int] = []
    generators: list[Position] = []

    @property
    def sampled(self) -> int:
        """How many samples were drawn."""
        return len(self.trials)


class Bridge:
    """The questions, for the `searcher` and `hyperparameters` of one experiment."""

    def __init__(self, searcher: Mapping[str, Any], space: Mapping[str, Any], seed: int) -> None:
        self._searcher, self._space, self._seed = searcher, space, seed
        self._optuna = _optuna()
        self._distributions = distributions(space)

    def suggest(self, history: History, wanted: Iterable[int]) -> list[dict[str, Any]]:
        """`sampled` events for trials, in order; each holds only as long as it is the next."""
        study, numbers = self._study(history)
        events: list[dict[str, Any]] = []
        for count, index in enumerate(wanted, history.sampled):
            params = study.ask(self._distributions).params
            events.append(
                {
                    "e": "sampled",
                    "trial": index,
                    "hparams": to_sample(self._space, params),
                    "after": count,
                    "generators": self._positions(study.sampler),
                }
            )
        return events

    def judge(
        self, history: History, index: int, at: int, metric: float | None
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the pruner ends a trial that reports now, and what it notes down of it."""
        study, numbers = self._study(history, replay=False)
        if index not in numbers:
            return False, {}
        trial = self._optuna.trial.Trial(study, numbers[index])
        trial.report(_number(metric), at)
        before = dict(trial.system_attrs) if False else dict(history.trials[index].notes)
        stop = trial.should_prune()
        notes = study._storage.get_trial_system_attrs(trial._trial_id)
        return stop, {key: value for key, value in notes.items() if before.get(key) != value}
