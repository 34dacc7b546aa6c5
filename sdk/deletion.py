"""Deleting an experiment; every step can be repeated after an interrupted deletion."""

from __future__ import annotations

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.snapshot import ExperimentSnapshot
from detslurm.store import ExperimentDir, NotFound
from detslurm.store.fs import remove_tree
from detslurm.store.reading import started_checkpoints
from detslurm.store.records import Intent

_GONE = (
    *("trials", "metrics.h5", "summary.json", "code", "jobs"),
    *("secret", "config.masked.json", "config.yaml"),
)


def delete(snapshot: ExperimentSnapshot) -> None:
    """Remove what is in the storage, then everything but the facts, which reserve the ids."""
    directory = snapshot.directory
    if not snapshot.facts.desired.deleted:
        directory.append(Intent(intent="delete"))
    _empty_storage(snapshot)
    for name in _GONE:
        _remove(directory, name)
    _remove(directory, "config.json")  # last: it names the checkpoint storage


def _empty_storage(snapshot: ExperimentSnapshot) -> None:
    begun = {row.id: row.run_count for row in snapshot.trials.values() if row.run_count}
    trials = [(snapshot.directory.trial(trial), runs) for trial, runs in begun.items()]
    uuids = [uuid for trial, runs in trials for uuid in started_checkpoints(trial, runs)]
    if not begun:
        return
    from detslurm.storage import from_config
    from detslurm.storage.interface import tensorboard_folder

    try:
        section = snapshot.directory.config()["checkpoint_storage"]
        storage = from_config(section)
    except (NotFound, KeyError, ValueError) as error:
        raise LifecycleError(
            f"the checkpoints of experiment {snapshot.directory.id} can't be reached: {error}"
        ) from error
    for uuid in uuids:
        storage.discard(uuid)
    mark = snapshot.directory.mark_in(getattr(storage, "base", None))
    folder = tensorboard_folder(snapshot.directory.id, mark)
    # One with a mark is the experiment's from the top: no empty directories are left, either.
    storage.remove_files(folder.partition("/")[0] if mark else folder)


def _remove(directory: ExperimentDir, name: str) -> None:
    path = directory.path / name
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
