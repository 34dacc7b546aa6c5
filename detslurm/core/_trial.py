"""A process's reads and writes of its trial in the store, around the Core API."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base import contract
from detslurm._base.info import ClusterInfo
from detslurm.config.run_config import RunSearcher
from detslurm.core._lengths import OWN_LENGTHS, FixedLengths, LengthSource
from detslurm.core._recorder import AnyRecorder, Recorder
from detslurm.core._retries import keep_trying
from detslurm.storage import Digests, Storages
from detslurm.store import ExperimentDir, Store, StoreError, TrialDir, TrialView, fold_facts
from detslurm.store.errors import TORN
from detslurm.store.reading import checkpoint_digests, started_checkpoints, started_in_run

if TYPE_CHECKING:
    from detslurm.core._search import TrialSearch
    from detslurm.store import BestValidation

logger = logging.getLogger("detslurm.core")


def trial_of(info: ClusterInfo) -> TrialDir:
    """The trial's place in the store."""
    return experiment_of(info).trial(info.trial.trial_id)


def experiment_of(info: ClusterInfo) -> ExperimentDir:
    """The experiment's place in the store."""
    return ExperimentDir.at(Path(os.environ[contract.EXPERIMENT_DIR]))


def lengths_of(
    searcher: RunSearcher, view: TrialView, search: TrialSearch | None
) -> LengthSource | None:
    """The operations of `searcher.operations()`; None if the configuration has no lengths.

    Workers know of no search: the chief decides for them.
    """
    length = searcher.length
    if length is None and searcher.name not in OWN_LENGTHS:
        return None
    if search is not None:
        return search
    if length is None or (view.length or {}).get("length", -1) >= length:
        return FixedLengths([])
    return FixedLengths([length], searcher.compared)


def collect_partial_checkpoints(
    trial: TrialDir, run: int, view: TrialView, storages: Storages
) -> None:
    """Remove the unfinished saves of earlier runs, unless they became checkpoints."""
    if any(problem.reason != TORN for problem in view.problems):
        return  # the unreadable record may be that of a checkpoint
    known = {checkpoint.uuid for checkpoint in view.checkpoints}
    started = keep_trying(lambda: started_checkpoints(trial, run - 1))
    for storage_id, section in started.items():
        if storage_id in known:
            continue
        try:
            keep_trying(partial(storages.of(section).discard, storage_id))
        except Exception as err:  # cloud libraries raise errors of all kinds
            logger.warning("can't remove the unfinished checkpoint %s: %s", storage_id, err)


def mark_deleted(trial: TrialDir, storage_id: str, is_own: bool) -> str | None:
    """Delete a checkpoint by a fact of the experiment; returns what needs it, if it can't be.

    `is_own`: this process has saved it. The records of the experiment have all others.
    """
    from detslurm.store import checkpoint_facts  # only here: most code never deletes any

    experiment = ExperimentDir.at(trial.experiment_path)

    def mark() -> str | None:
        if not (is_own or _was_saved_in(experiment, trial, storage_id)):
            return "the experiment that has saved it"  # only its facts show what else needs it
        return checkpoint_facts.mark_deleted(experiment, [storage_id]).kept.get(storage_id)

    return keep_trying(mark)


def recorded_digests(trial: TrialDir, storage_id: str) -> Digests | None:
    """The digests of a checkpoint's files; None where no record of this user's is found.

    The trial, its siblings and what its experiment begins with are asked, in this order.
    """

    def find() -> Digests | None:
        if (found := checkpoint_digests(trial, storage_id)) is not None:
            return found
        experiment = ExperimentDir.at(trial.experiment_path)
        numbers = (experiment.id, *experiment.created().sources)
        places = (_digests_in(experiment.store, number, storage_id) for number in numbers)
        return next((digests for digests in places if digests is not None), None)

    return keep_trying(find)


def _digests_in(store: Store, number: int, storage_id: str) -> Digests | None:
    try:
        experiment = store.experiment(number)
        if experiment.foreign_owner() is not None:  # the owner may have written the files, too
            return None
        trials = map(experiment.trial, fold_facts(experiment).trial_ids)
    except StoreError:  # it was deleted, or is closed to this user: nothing is known
        return None
    found = (checkpoint_digests(trial, storage_id) for trial in trials)
    return next((digests for digests in found if digests is not None), None)


def _was_saved_in(experiment: ExperimentDir, trial: TrialDir, storage_id: str) -> bool:
    """Whether the trial or, rarely, another trial of its experiment has saved it."""
    runs = trial.runs()
    if any(storage_id in started_in_run(trial, run.number) for run in reversed(runs)):
        return True
    facts = fold_facts(experiment)
    searcher = experiment.run_config().searcher
    begun_with = {facts.created.source_checkpoint, searcher.source_checkpoint_uuid}
    begun_with |= {run.start.continued.uuid for run in runs if run.start.continued is not None}
    if storage_id in begun_with:  # the usual case: no need to read the siblings' records
        return False
    others = (experiment.trial(number) for number in facts.trial_ids if number != trial.id)
    return any(storage_id in started_checkpoints(one, len(one.runs())) for one in others)


def best_validation(info: ClusterInfo, recorder: AnyRecorder) -> Callable[[], float | None]:
    """Asks for the best searcher metric of the experiment, the newest report included."""

    @cache
    def best() -> BestValidation:
        from detslurm.store import BestValidation  # only here: most code never asks

        return BestValidation(experiment_of(info))

    def ask() -> float | None:
        recorder.flush()  # the newest reports count too
        return keep_trying(lambda: best().value())

    return ask


class NodeRecorder:
    """The records of a node other than the chief's, begun when the first is to be written."""

    def __init__(self, trial: TrialDir, run: int, node: int) -> None:
        self._path = trial.node_records_path(run, node)
        self._recorder: Recorder | None = None

    def __enter__(self) -> AnyRecorder:
        self._recorder = Recorder.of(self._path)
        return self._recorder

    def __exit__(self, *exc: object) -> None:
        assert self._recorder is not None
        self._recorder.close()
