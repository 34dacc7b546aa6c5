"""The experiment of an unmanaged script: new, or existing and named by its user."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detslurm.core._unmanaged_info import UnmanagedInfo
from detslurm.store import ExperimentDir, ExperimentFacts, Store, StoreError, TrialDir, fold_facts
from detslurm.store.records import Created, Found, Intent, Trials
from detslurm.store.unmanaged import METRIC, claim_number, unmanaged_config


def unmanaged_trial(
    store: Store, unmanaged_info: UnmanagedInfo, storage: Mapping[str, Any]
) -> tuple[TrialDir, int]:
    """The trial to record, and the number of the experiment's newest fact.

    Raises `StoreError` where the user has ended the experiment of that name.
    """
    named = unmanaged_info.external_experiment_id
    if named is None:
        return _first_trial(_new_experiment(store, unmanaged_info, storage)), 1

    made: list[ExperimentDir] = []

    def make() -> int:
        made.append(_new_experiment(store, unmanaged_info, storage))
        return made[-1].id

    number, is_new = claim_number(store, ["experiment", named], make)
    if made and not is_new:  # another script was faster: nothing will ever run here
        made[-1].append(Intent(intent="delete"))
    experiment = store.experiment(number)
    _wanted(experiment)  # before a trial is added, which would never run
    trial = _trial(experiment, unmanaged_info, is_new=is_new)
    facts = _wanted(experiment, trial.id)
    if trial.id not in facts.lost:
        return trial, facts.count
    return trial, experiment.append(Found(trials=(trial.id,)), facts.count)


def _wanted(experiment: ExperimentDir, trial: int | None = None) -> ExperimentFacts:
    """The experiment's facts. Raises `StoreError` where its user has ended it, or this trial."""
    facts = fold_facts(experiment)
    desired = facts.desired
    if desired.deleted or desired.stopping is not None or trial in desired.killed_trials:
        raise StoreError(f"experiment {experiment.id} was ended by its user")
    return facts


def _trial(experiment: ExperimentDir, unmanaged_info: UnmanagedInfo, *, is_new: bool) -> TrialDir:
    made = [_first_trial(experiment).id] if is_new else []

    def make() -> int:
        if not made:
            made.append(_another_trial(experiment))
        return made[0]

    if unmanaged_info.external_trial_id is None:
        return experiment.trial(make())
    names = ["trial", str(experiment.id), unmanaged_info.external_trial_id]
    number, _ = claim_number(experiment.store, names, make)
    if made and made[0] != number:  # another script was faster: this one will never run
        experiment.append(Intent(intent="kill_trial", trial=made[0]))
    return experiment.trial(number)


def _first_trial(experiment: ExperimentDir) -> TrialDir:
    return experiment.trial(experiment.created().first_trial)


def _another_trial(experiment: ExperimentDir) -> int:
    trial = experiment.store.reserve_trials(experiment.id, 1)
    experiment.prepare_trials(trial, 1)
    experiment.append(Trials(first_trial=trial, trials=1))
    return trial


def _new_experiment(
    store: Store, unmanaged_info: UnmanagedInfo, storage: Mapping[str, Any]
) -> ExperimentDir:
    name = unmanaged_info.name or Path(sys.argv[0]).name or "interactive"
    config = unmanaged_config(name, list(filter(None, sys.argv)) or [name], storage)
    config["searcher"] = {**config["searcher"], **(unmanaged_info.searcher or {})}
    about = {"name": name, "metric": METRIC, **unmanaged_info._created()}
    created = Created(managed=False, trials=1, **about)
    return store.create_experiment(created, {**config, **unmanaged_info._config()})
