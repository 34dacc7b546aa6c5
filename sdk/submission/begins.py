"""Where the trials of a new experiment begin that go on with trials of another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base.states import OUT_OF_OPS
from detslurm.sdk.checkpoints.verification import unusable
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.derivation import Begin, Past
from detslurm.storage import Storages
from detslurm.store import CheckpointView, fold_trial
from detslurm.store.run_records import Continued
from detslurm.store.trial_fold import OUTPUTS

if TYPE_CHECKING:
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot


def begin_of(
    one: ExperimentSnapshot, trial_id: int, storages: Storages, past: Past | None = None
) -> Begin | None:
    """Where the trial goes on; None where it has left nothing. With `past` also a trial goes on
    that has left no checkpoint, or does not run any more."""
    trial = one.directory.trial(trial_id)
    runs = trial.runs()
    if not runs:
        return None
    start = runs[-1].start
    view = fold_trial(trial, one.facts.context(trial_id))
    # The first checkpoint of an imported trial stayed at the other site.
    before = None if one.facts.created.imported else start.continued
    there = [c for c in view.checkpoints if c.state == "COMPLETED" and is_there(c, storages)]
    latest = next((c for c in reversed(there) if c.kind is None), None)
    outputs = next((c for c in reversed(there) if c.kind == OUTPUTS), None)
    if latest is None and outputs is None and before is None and past is None:
        return None
    runs_on = past is None or past.outcome == OUT_OF_OPS
    if runs_on and latest is not None and (problem := _problem(latest, storages)):
        raise SubmitError(
            f"{problem}; trial {trial_id} goes on from the one before once this one is deleted"
        )
    source = latest or before
    continued = Continued(
        experiment=one.view.id,
        trial=trial_id,
        saved_by=before.saved_by if latest is None and before is not None else trial_id,
        uuid=None if source is None else source.uuid,
        steps=view.steps if source is None else source.steps,
        seed=start.seed,
        hparams=start.hparams or {},
        outputs=None if outputs is None else str(storages.of(outputs.storage).direct(outputs.uuid)),
    )
    return Begin(trial, continued, past)


def missing_text(one: ExperimentSnapshot, trial_id: int | None) -> str:
    """Names a checkpoint that is gone without a deletion, if any."""
    storages = Storages(one.directory.config()["checkpoint_storage"], one.directory.store.path)
    trials = one.trials if trial_id is None else [trial_id]
    latest = filter(None, (one.trials[trial].latest_checkpoint for trial in trials))
    gone = next((c for c in latest if not is_there(c, storages)), None)
    if gone is None:
        return ""
    return (
        f" checkpoint {gone.uuid} of trial {gone.trial} has no files under"
        f" {storages.of(gone.storage).where} (is that file system mounted?);"
    )


def sources_of(one: ExperimentSnapshot, begins: Mapping[int, Begin]) -> dict[int, tuple[str, ...]]:
    """The checkpoints by the experiment whose trial saved them, where that still exists."""
    store, found = one.directory.store, dict[int, tuple[str, ...]]()
    for begin in begins.values():
        continued = begin.continued
        if continued.uuid is not None:
            owner = store.find_trial(continued.saved_by).experiment_id
            found[owner] = (*found.get(owner, ()), continued.uuid)
        if continued.outputs is not None:
            owner = continued.experiment
            found[owner] = (*found.get(owner, ()), Path(continued.outputs).name)
    return found


def is_there(checkpoint: CheckpointView, storages: Storages) -> bool:
    """Whether it can be restored, as far as it costs little to know."""
    folder = storages.of(checkpoint.storage).direct(checkpoint.uuid)
    return folder is None or folder.is_dir() or not storages.reachable(checkpoint.storage)


def _problem(checkpoint: CheckpointView, storages: Storages) -> str | None:
    storage = storages.of(checkpoint.storage)
    if storage.direct(checkpoint.uuid) is None or not storages.reachable(checkpoint.storage):
        return None  # a bucket answers slowly
    return unusable(checkpoint, storage)
