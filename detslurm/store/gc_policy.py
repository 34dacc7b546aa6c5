"""Find the checkpoints that an experiment's policy does not keep: a pure function of saved
checkpoints and their validations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec

from detslurm.store.metric_rank import metric_rank
from detslurm.store.objectives import SeveralObjectives
from detslurm.store.views import CheckpointView, ValidationView

FIELD: Final = "gc_policy"
"""The setting of an experiment that replaces the submitted policy."""


class GCPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many checkpoints are kept.

    Attributes:
        save_experiment_best: The best of the whole experiment.
        save_trial_best: The best of each trial.
        save_trial_latest: The latest of each trial.
    """

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1

    @classmethod
    def of(cls, config: Mapping[str, Any], fields: Mapping[str, Any]) -> Self:
        """The policy of an experiment: as it was set last, else as it was submitted."""
        numbers = {**(config.get("checkpoint_storage") or {}), **(fields.get(FIELD) or {})}
        return cls(**{n: numbers[n] for n in cls.__struct_fields__ if numbers.get(n) is not None})


_NONE: Mapping[str, Any] = {}


class Candidate(NamedTuple):
    """A complete checkpoint; `value`, `reported` and `metrics` are the searcher's metric, the time
    and all metrics of the validation at exactly its steps; None, infinity and none without any."""

    uuid: str
    trial: int
    run: int
    steps: int
    value: float | None = None
    reported: float = math.inf
    metrics: Mapping[str, Any] = _NONE


def candidates(
    checkpoints: Iterable[CheckpointView], validations: Iterable[ValidationView]
) -> list[Candidate]:
    """A trial's complete checkpoints, in the order in which they were saved."""
    at = {
        validation.steps: (
            validation.value,
            math.inf if (t := validation.time) is None else t,
            validation.metrics,
        )
        for validation in validations
    }
    return [
        Candidate(c.uuid, c.trial, c.run, c.steps, *at.get(c.steps, ()))
        for c in checkpoints
        if c.state == "COMPLETED" and c.kind is None
    ]


def beyond(
    policy: GCPolicy,
    checkpoints: Sequence[Candidate],
    *,
    smaller_is_better: bool,
    objectives: SeveralObjectives | None = None,
) -> list[Candidate]:
    """Those that the policy does not keep, in the order in which they were given: as they were
    saved, trial by trial. To keep the best of an experiment all its checkpoints are needed.

    With `objectives` the whole Pareto front stays, whatever the policy.
    """
    kept: set[str] = set()
    if objectives is None:
        best = _best_first(checkpoints, smaller_is_better)
    else:
        rated = [(one.metrics, one) for one in sorted(checkpoints, key=_age)]
        best = objectives.comparison().best_first(rated)
        kept.update(one.uuid for one in objectives.comparison().front(rated))
    kept.update(one.uuid for one in best[: policy.save_experiment_best])
    for own in _by_trial(best):
        kept.update(one.uuid for one in own[: policy.save_trial_best])
    for own in _by_trial(checkpoints):
        kept.update(one.uuid for one in _latest_first(own)[: policy.save_trial_latest])
    return [one for one in checkpoints if one.uuid not in kept]


def _age(one: Candidate) -> tuple[float, int, int]:
    return one.reported, one.trial, one.steps


def _best_first(checkpoints: Iterable[Candidate], smaller: bool) -> list[Candidate]:
    """The validated checkpoints; of equal ones the earlier validation is first."""

    def place(rated: tuple[float, Candidate]) -> tuple[tuple[int, float], float, int, int]:
        value, candidate = rated
        return metric_rank(value, smaller), *_age(candidate)

    rated = [(one.value, one) for one in checkpoints if one.value is not None]
    return [candidate for _, candidate in sorted(rated, key=place)]


def _latest_first(own: Sequence[Candidate]) -> list[Candidate]:
    """One trial's, by run first: a later run may have begun again at an earlier step."""
    places = sorted((one.run, one.steps, place) for place, one in enumerate(own))
    return [own[place] for _, _, place in reversed(places)]


def _by_trial(checkpoints: Iterable[Candidate]) -> list[list[Candidate]]:
    found: defaultdict[int, list[Candidate]] = defaultdict(list)
    for one in checkpoints:
        found[one.trial].append(one)
    return list(found.values())
