"""Deleting an experiment; every step can be repeated after an interrupted deletion."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from detslurm._base.quantities import counted
from detslurm._base.states import UNKNOWN
from detslurm.sdk.checkpoints.catalog import storages_of
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.submission.sources import release_sources
from detslurm.storage import Storages
from detslurm.storage.interface import tensorboard_folder
from detslurm.store import ExperimentDir, ExperimentFacts, fold_facts
from detslurm.store.checkpoint_facts import mark_deleted, registered
from detslurm.store.fs import remove_tree
from detslurm.store.reading import outputs_of, started_checkpoints
from detslurm.store.records import CheckpointDeleted, Intent

_GONE = (
    "trials", "metrics.h5", "summary.json", "trials.json", "code", "jobs", "search", "best",
    "latest", "secret", "config.masked.json", "config.yaml",
    "software", "notices",
)  # fmt: skip


def delete(snapshot: ExperimentSnapshot, *, force: bool = False) -> None:
    """Remove the experiment's files in the storage, then all but the facts, which reserve the ids.
    With `force` checkpoints that can't be reached are no error; their files stay."""
    directory = snapshot.directory
    saved, unreachable = _seen(snapshot, force=force)
    with directory.as_owner():
        while not (snapshot.facts.desired.deleted or _close(snapshot)):
            snapshot.refresh()
            if not snapshot.view.finished:
                raise LifecycleError(
                    f"can't delete experiment {directory.id}: it is {snapshot.view.state} again,"
                    " for it was activated meanwhile; kill it first"
                )
            saved, unreachable = _seen(snapshot, force=force)
        release_sources(directory)
        saved.discard(snapshot, unreachable)
        for name in _GONE:
            remove_path(directory.path / name)
        remove_path(directory.path / "config.json")  # last: it names the checkpoint storage


def delete_tensorboard_files(snapshot: ExperimentSnapshot) -> None:
    """Remove an experiment's TensorBoard files, and nothing else."""
    with snapshot.directory.as_owner():
        everywhere = _Saved.of(snapshot).discard_tensorboard(snapshot)
    if not everywhere:
        raise LifecycleError(
            f"a storage of experiment {snapshot.directory.id} can't be seen from here, and may have"
            " more of its TensorBoard files: repeat it where it can be seen"
        )


def _seen(snapshot: ExperimentSnapshot, *, force: bool) -> tuple[_Saved, Collection[str]]:
    """The saved files, and the checkpoints that can't be reached; an error unless `force`."""
    saved = _Saved.of(snapshot)
    unreachable = saved.unreachable(snapshot.directory)
    if unreachable and not force:
        where = ", ".join(dict.fromkeys(unreachable.values()))
        raise LifecycleError(
            f"{where} is empty or can't be seen from here, and"
            f" {counted(len(unreachable), 'checkpoint')} of experiment {snapshot.directory.id}"
            " would stay there: delete it where that can be seen, or with --force if it is gone for"
            " good"
        )
    return saved, unreachable


def _close(snapshot: ExperimentSnapshot) -> bool:
    """Record the deletion, unless a checkpoint is needed now; False after another change."""
    directory = snapshot.directory
    facts = refuse_kept(directory)
    if facts.count != snapshot.facts.count:
        return False
    return directory.append_next(Intent(intent="delete"), facts.count)


def refuse_kept(directory: ExperimentDir) -> ExperimentFacts:
    """The facts of an experiment; `LifecycleError` where a checkpoint of it is needed."""
    mark_deleted(directory, ())  # releases the holds of dead processes
    facts = fold_facts(directory)
    if facts.problems:
        raise LifecycleError(
            f"a fact of experiment {directory.id} can't be read ({facts.problems[0].path}), and may"
            " protect a checkpoint: nothing is deleted"
        )
    kept = registered(directory)
    kept |= {uuid: fact.kept_by for fact in facts.checkpoints.kept.values() for uuid in fact.uuids}
    if kept:
        holders, uuids = ", ".join(dict.fromkeys(kept.values())), ", ".join(kept)
        raise LifecycleError(
            f"checkpoint {uuids} of experiment {directory.id} is needed for {holders}: delete that"
            f" first, or delete only the other checkpoints:"
            f" `detslurm experiment set gc-policy {directory.id} --save-experiment-best 0"
            f" --save-trial-best 0 --save-trial-latest 0`"
        )
    return facts


class _Begun(NamedTuple):
    """A checkpoint that a run began to save, and its storage; None for the configured storage."""

    uuid: str
    storage: dict[str, Any] | None


@dataclass(frozen=True)
class _Saved:
    """The files of an experiment in storages; `storages` is None where nothing ever ran."""

    checkpoints: tuple[_Begun, ...] = ()
    sections: tuple[dict[str, Any] | None, ...] = ()
    storages: Storages | None = None

    @classmethod
    def of(cls, snapshot: ExperimentSnapshot) -> _Saved:
        if hidden := [row.id for row in snapshot.trials.values() if row.state == UNKNOWN]:
            number = snapshot.directory.id
            raise LifecycleError(
                f"trial {hidden[0]} of experiment {number} can't be read, and its checkpoints would"
                " stay unknown: try again when its files can be read"
            )
        begun: dict[str, dict[str, Any] | None] = {}
        sections: list[dict[str, Any] | None] = [None]
        rows = [row for row in snapshot.trials.values() if row.run_count]
        if not rows:
            return cls()
        for row in rows:
            trial = snapshot.directory.trial(row.id)
            begun |= started_checkpoints(trial, row.run_count) | outputs_of(trial.runs())
            sections += snapshot.read_trial(row.id).storages
        checkpoints = tuple(_Begun(uuid, section) for uuid, section in begun.items())
        different = {repr(section): section for section in sections}
        return cls(checkpoints, tuple(different.values()), storages_of(snapshot.directory))

    def unreachable(self, directory: ExperimentDir) -> dict[str, str]:
        """The places where files would stay without a record, by checkpoint."""
        if self.storages is None:
            return {}
        deleted = fold_facts(directory).checkpoints.deleted
        return self.storages.unreachable(c for c in self.checkpoints if c.uuid not in deleted)

    def discard(self, snapshot: ExperimentSnapshot, unreachable: Collection[str]) -> None:
        """Remove checkpoints and TensorBoard's files."""
        if self.storages is None:
            return
        directory = snapshot.directory
        # A process that was as fast as the deletion keeps its checkpoint.
        free = fold_facts(directory).checkpoints.unprotected(c.uuid for c in self.checkpoints)
        gone = [c for c in self.checkpoints if c.uuid in free and c.uuid not in unreachable]
        for checkpoint in gone:
            self.storages.discard(checkpoint)
        if gone:  # a storage that is empty now is not asked for when this is repeated
            directory.append(CheckpointDeleted(uuids=tuple(c.uuid for c in gone)))
        self.discard_tensorboard(snapshot)

    def discard_tensorboard(self, snapshot: ExperimentSnapshot) -> bool:
        """Remove TensorBoard's files where they can be seen; whether that is everywhere."""
        if self.storages is None or snapshot.facts.created.imported:
            return True  # it came without any, and an early copy's mark is the original's
        seen = [section for section in self.sections if self.storages.reachable(section)]
        for storage in map(self.storages.of, seen):
            mark = snapshot.directory.mark_in(getattr(storage, "base", None))
            folder = tensorboard_folder(snapshot.directory.id, mark)
            # A folder with a mark is the experiment's from the top: empty parents go, too.
            storage.remove_files(folder.partition("/")[0] if mark else folder)
        return len(seen) == len(self.sections)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a tree; a missing path is fine."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
