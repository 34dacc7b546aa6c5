"""Which checkpoints an experiment's policy lets go: a pure function of what was saved and measured.

A checkpoint stays that is among the best of its experiment, or the best or the latest of its trial,
as many of each as `checkpoint_storage` says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec

from detslurm.store.metric_rank import metric_rank
from detslurm.store.views import CheckpointView, ValidationView

FIELD: Final = "gc_policy"
"""The setting of an experiment that takes the place of what was submitted."""


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
        """That of an experiment: as it was set last, else as it was submitted."""
        section = config.get("checkpoint_storage") or {}
        found = {**section, **(fields.get(FIELD) or {})}
        return cls(**{n: found[n] for n in cls.__struct_fields__ if found.get(n) is not None})


class Candidate(NamedTuple):
    """A complete checkpoint with what its place in the ranks follows from.

    `value` is the searcher's metric of a validation at exactly the checkpoint's steps, None without
    one, and `reported` the time of that validation.
    """

    uuid: str
    trial: int
    run: int
    steps: int
    value: float | None = None
    reported: float = math.inf


def candidates(
    checkpoints: Iterable[CheckpointView], validations: Iterable[ValidationView]
) -> list[Candidate]:
    """A trial's complete checkpoints, in the order in which they were saved."""
    at = {validation.steps: validation for validation in validations}
    return [
        Candidate(
            c.uuid,
            c.trial,
            c.run,
            c.steps,
            at[c.steps].value if c.steps in at else None,
            _reported(at.get(c.steps)),
        )
        for c in checkpoints
        if c.state == "COMPLETED"
    ]


def _reported(validation: ValidationView | None) -> float:
    return math.inf if validation is None or validation.time is None else validation.time


def beyond(
    policy: GCPolicy, checkpoints: Sequence[Candidate], *, smaller_is_better: bool
) -> list[Candidate]:
    """Those that the policy does not keep, in the order in which they were given.

    They come in the order in which they were saved, trial by trial; all of an experiment's, where
    the best of it are kept.
    """
    best = _best_first(checkpoints, smaller_is_better)
    kept = set(best[: policy.save_experiment_best])
    for own in _by_trial(best):
        kept.update(own[: policy.save_trial_best])
    for own in _by_trial(checkpoints):
        kept.update(_latest_first(own)[: policy.save_trial_latest])
    return [one for one in checkpoints if one not in kept]


def _best_first(checkpoints: Iterable[Candidate], smaller: bool) -> list[Candidate]:
    """Those that have a validation; of equal ones that which was validated earlier is first."""

    def place(rated: tuple[float, Candidate]) -> tuple[tuple[int, float], float, int, int]:
        value, one = rated
        return metric_rank(value, smaller), one.reported, one.trial, one.steps

    rated = [(one.value, one) for one in checkpoints if one.value is not None]
    return [one for _, one in sorted(rated, key=place)]


def _latest_first(own: Sequence[Candidate]) -> list[Candidate]:
    """One trial's; a run that began again at an earlier step goes before the runs before it."""
    places = sorted((one.run, one.steps, place) for place, one in enumerate(own))
    return [own[place] for _, _, place in reversed(places)]


def _by_trial(checkpoints: Iterable[Candidate]) -> list[list[Candidate]]:
    found: defaultdict[int, list[Candidate]] = defaultdict(list)
    for one in checkpoints:
        found[one.trial].append(one)
    return list(found.values())
