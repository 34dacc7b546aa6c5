"""Results of earlier experiments, as far as they lie in the space of a new search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from detslurm._base.quantities import counted
from detslurm.config.points import (
    Misfit,
    Route,
    Space,
    fitted,
    value_at,
    varying,
    with_value,
)
from detslurm.config.secret_values import masked_sample, restored_sample
from detslurm.config.spaces import is_constant
from detslurm.searcher.events import KnownResults, finite
from detslurm.searcher.optuna.history import KnownTrial

MOST: Final = 1000


class EarlierTrial(msgspec.Struct, frozen=True):
    """A trial that has completed, with its last validation.

    It is whole unless its search ended it early.
    """

    hparams: dict[str, Any]
    metrics: dict[str, Any]
    steps: int = 0
    is_whole: bool = True


class EarlierExperiment(msgspec.Struct, frozen=True):
    """An earlier experiment: its space, and its trials, the oldest first."""

    space: dict[str, Any]
    trials: list[EarlierTrial]


def summary(known: KnownResults) -> str:
    """How many results were taken, and why others were not."""
    left = {
        "outside of the space": known.outside,
        "without the metric": known.unmeasured,
        f"older than the newest {MOST:,}": known.older,
    }
    why = [f"{count} {reason}" for reason, count in left.items() if count]
    noun = "experiment" if len(known.experiments) == 1 else "experiments"
    names = ", ".join(map(str, known.experiments))
    skipped = f"; skipped: {', '.join(why)}" if why else ""
    return f"{counted(len(known.results), 'result')} of {noun} {names}{skipped}"


def known_results(
    searcher: Mapping[str, Any], space: Space, earlier: Mapping[int, EarlierExperiment]
) -> KnownResults:
    """The results of earlier experiments, by id, that a search can use.

    At most `MOST` of them, the newest by the order of experiments and trials.
    """
    found: list[KnownTrial] = []
    outside = unmeasured = 0
    for number in sorted(earlier):
        experiment = earlier[number]
        for trial in experiment.trials:
            if searcher["metric"] not in trial.metrics:
                unmeasured += 1
            elif (values := _values_in(space, trial.hparams, experiment.space)) is None:
                outside += 1
            else:  # a choice holds constants, too, and the log no secrets
                found.append(_known(searcher, trial, masked_sample(values, space)))
    return KnownResults(
        experiments=sorted(earlier),
        results=found[-MOST:],
        outside=outside,
        unmeasured=unmeasured,
        older=max(len(found) - MOST, 0),
    )


def _known(searcher: Mapping[str, Any], trial: EarlierTrial, values: dict[str, Any]) -> KnownTrial:
    time = finite(trial.metrics.get(searcher.get("time_metric") or "", trial.steps))
    return KnownTrial(
        values,
        state="complete" if trial.is_whole else "pruned",
        reports=[(int(time or 0), finite(trial.metrics[searcher["metric"]]))],
    )


def _values_in(space: Space, hparams: Mapping[str, Any], then: Space) -> dict[str, Any] | None:
    """The trial's values of all that varies in the space; None where it lies outside.

    A constant of the space counts only where the earlier experiment had varied it, because paths
    and lengths of a training differ between experiments whose results can be compared.
    """
    values: dict[str, Any] = {}
    hparams = restored_sample(hparams, space)  # records hold no secrets
    try:
        for route, spec in varying(space):
            values = with_value(values, route, fitted(spec, value_at(hparams, route)))
        for route, _ in varying(then):
            constant = _constant_at(space, route)
            if constant is not None:
                fitted(constant, value_at(hparams, route))
    except (KeyError, Misfit):
        return None
    return values


def _constant_at(space: Space, route: Route) -> Any:
    try:
        spec = value_at(space, route)
    except KeyError:
        return None
    return spec if is_constant(spec) else None


def ends_trials_early(searcher: Mapping[str, Any]) -> bool:
    """Whether a search ends trials before they have trained as far as others."""
    name = str(searcher.get("name"))
    return name in ("async_halving", "adaptive_asha", "pbt") or bool(searcher.get("pruner"))


def with_wholes(trials: Iterable[EarlierTrial], *, early: bool) -> list[EarlierTrial]:
    """The trials of one experiment; where some are ended early, only the longest are whole."""
    found = list(trials)
    longest = max((trial.steps for trial in found), default=0)
    return [
        msgspec.structs.replace(trial, is_whole=not early or trial.steps >= longest)
        for trial in found
    ]
