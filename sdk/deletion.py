"""Removing an experiment; every step may be repeated, so a deletion that broke off can go on."""

from __future__ import annotations

from detslurm.sdk.lifecycle_errors import LifecycleError
from detslurm.sdk.survey import Surveyed
from detslurm.store import ExperimentDir, NotFound
from detslurm.store.fs import remove_tree


def delete(surveyed: Surveyed) -> None:
    """Remove checkpoints, then everything but the facts, which keep the id and the trial ids."""
    directory = surveyed.directory
    if not surveyed.facts.wishes.deleted:
        directory.append({"type": "wish", "wish": "delete"})
    _remove_checkpoints(surveyed)
    for name in ("trials", "metrics.h5", "summary.json", "code", "jobs", "config.yaml"):
        _remove(directory, name)
    _remove(directory, "config.json")  # last: it says where the checkpoints are


def _remove_checkpoints(surveyed: Surveyed) -> None:
    views = [surveyed.full(trial.id) for trial in surveyed.trials.values() if trial.run_count]
    uuids = [c.uuid for view in views for c in view.checkpoints]
    uuids += [uuid for view in views for uuid in view.unfinished_checkpoints]
    if not uuids:
        return
    from detslurm.storage import from_config

    try:
        section = surveyed.directory.config()["checkpoint_storage"]
        storage = from_config(section)
    except (NotFound, KeyError, ValueError) as error:
        raise LifecycleError(
            f"the checkpoints of experiment {surveyed.directory.id} can't be reached: {error}"
        ) from error
    for uuid in uuids:
        storage.discard(uuid)


def _remove(directory: ExperimentDir, name: str) -> None:
    path = directory.path / name
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
