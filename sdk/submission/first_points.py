"""The trials that `searcher.first` names, as points: they are read once, at the submission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from detslurm.config import ExperimentConfig, LoadedExperiment
from detslurm.config.point_rules import REFERENCE, is_reference, misfits
from detslurm.config.points import value_at, varying, with_value
from detslurm.config.secret_values import restored_sample
from detslurm.sdk.errors import SubmitError
from detslurm.store import NotFound, Store

Sample = Mapping[str, Any]


def with_named_trials(loaded: LoadedExperiment, store: Store) -> LoadedExperiment:
    """The configuration with hyperparameters in place of `{trial: N}`. Raises `SubmitError` naming
    all trials that are missing, or have a hyperparameter that is not in the space."""
    config = loaded.config.to_dict()
    searcher, space = config["searcher"], config["hyperparameters"]
    if not any(is_reference(point, space) for point in searcher["first"]):
        return loaded
    points, problems = [], []
    for number, point in enumerate(searcher["first"]):
        try:
            named = (
                _point_of(store, point[REFERENCE], space) if is_reference(point, space) else point
            )
        except (NotFound, ValueError) as error:
            problems.append(f"searcher.first[{number}]: {error}")
        else:
            points.append(named)
    if problems:
        raise SubmitError("\n".join(problems))
    frozen = {**config, "searcher": {**searcher, "first": points}}
    return structs.replace(loaded, config=ExperimentConfig.from_dict(frozen))


def _point_of(store: Store, trial_id: int, space: Mapping[str, Any]) -> dict[str, Any]:
    sample = restored_sample(_sample_of(store, trial_id), space)  # records hold no secrets
    point: dict[str, Any] = {}
    for route, _ in varying(space):
        name = ".".join(route)
        try:
            point = with_value(point, route, value_at(sample, route))
        except KeyError:
            raise ValueError(
                f"trial {trial_id} has no hyperparameter {name!r}, which varies in this search:"
                " name the values of the point instead"
            ) from None
    for keys, message, _ in misfits(point, space):
        raise ValueError(f"{'.'.join(keys)} of trial {trial_id}: {message}")
    return point


def _sample_of(store: Store, trial_id: int) -> Sample:
    trial = store.find_trial(trial_id)
    runs = trial.runs()
    if not runs or runs[-1].start.hparams is None:
        raise ValueError(f"trial {trial_id} has no hyperparameters yet: it has not begun")
    return runs[-1].start.hparams
