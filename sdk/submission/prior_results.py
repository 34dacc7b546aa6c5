"""The results of earlier experiments that a new search begins with, read at its submission."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from detslurm.sdk.errors import SubmitError
from detslurm.sdk.experiments.snapshot import read
from detslurm.searcher import Search
from detslurm.searcher.events import KnownResults
from detslurm.searcher.known import (
    EarlierExperiment,
    EarlierTrial,
    ends_trials_early,
    known_results,
    summary,
    with_wholes,
)
from detslurm.store import EventLog, ExperimentDir, NotFound, Store, StoreError

_KEY = "searcher.prior_experiments"
_SAME = ("metric", "prior_experiments", "time_metric")


def prior_results(
    config: Mapping[str, Any], store: Store, parent: ExperimentDir | None
) -> KnownResults:
    """The results of the experiments that the configuration names, or those of `parent`, whose
    sources may be gone. Raises `SubmitError` where an experiment is missing or none is of use."""
    searcher = config["searcher"]
    numbers = searcher["prior_experiments"]
    if parent is not None and (inherited := _inherited(config, parent)) is not None:
        return inherited
    try:
        earlier = {number: _earlier(store.experiment(number)) for number in numbers}
    except (NotFound, StoreError) as error:
        raise SubmitError(f"{_KEY}: {error}") from error
    found = known_results(searcher, config["hyperparameters"], earlier)
    if not found.results:
        raise SubmitError(f"{_KEY}: there is nothing to learn from: {summary(found)}")
    return found


def _inherited(config: Mapping[str, Any], parent: ExperimentDir) -> KnownResults | None:
    before = parent.config()
    same = all(before["searcher"].get(k) == config["searcher"].get(k) for k in _SAME)
    if not same or before.get("hyperparameters") != config["hyperparameters"]:
        return None
    return EventLog(parent.search, Search(before)).catch_up().known


def _earlier(experiment: ExperimentDir) -> EarlierExperiment:
    config = experiment.config()
    space, searcher = config.get("hyperparameters") or {}, config.get("searcher") or {}
    trials = with_wholes(_trials(experiment), early=ends_trials_early(searcher))
    return EarlierExperiment(space, trials)


def _trials(experiment: ExperimentDir) -> Iterator[EarlierTrial]:
    for _, row in sorted(read(experiment).trial_rows.items()):
        if row.state == "COMPLETED" and row.hparams is not None:
            last = row.last_validation
            metrics = {} if last is None else last.metrics
            steps = row.steps if last is None else last.steps
            yield EarlierTrial(row.hparams, metrics, steps)
