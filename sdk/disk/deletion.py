"""Deleting an experiment; every step can be repeated after an interrupted deletion."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, NamedTuple

from detslurm._quantities import counted
from detslurm._states import UNKNOWN
from detslurm.sdk.checkpoints.catalog import storages_of
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.submission.sources import release_sources
from detslurm.storage import Storage, Storages
from detslurm.storage.interface import tensorboard_folder
from detslurm.store import ExperimentDir, ExperimentFacts, fold_facts
from detslurm.store.checkpoint_facts import mark_deleted, registered
from detslurm.store.fs import remove_tree
from detslurm.store.reading import started_checkpoints
from detslurm.store.records import CheckpointDeleted, Intent

_GONE = (
    "trials", "metrics.h5", "summary.json", "trials.json", "code", "jobs", "search", "best",
    "latest", "secret", "config.masked.json", "config.yaml",
)  # fmt: skip


def delete(snapshot: ExperimentSnapshot, *, force: bool = False) -> None:
    """Remove what is in the storage, then everything but the facts, which reserve the ids.

    With `force` also where checkpoints can't be reached, whose files stay then.
    """
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
            _remove(directory, name)
        _remove(directory, "config.json")  # last: it names the checkpoint storage


def delete_tensorboard_files(snapshot: ExperimentSnapshot) -> None:
    """Remove what TensorBoard reads of an experiment, and nothing else."""
    with snapshot.directory.as_owner():
        everywhere = _Saved.of(snapshot).discard_tensorboard(snapshot)
    if not everywhere:
        raise LifecycleError(
            f"a storage of experiment {snapshot.directory.id} can't be seen from here, and may have"
            " more of its TensorBoard files: repeat it where it can be seen"
        )


def _seen(snapshot: ExperimentSnapshot, *, force: bool) -> tuple[_Saved, dict[str, str]]:
    """What there is to delete, and where that can't be reached; an error unless `force`."""
    saved = _Saved.of(snapshot)
    unreachable = saved.unreachable(snapshot.directory)
    if unreachable and not force:
        raise LifecycleError(_UNREACHABLE.format(
            where=", ".join(dict.fromkeys(unreachable.values())),
            checkpoints=counted(len(unreachable), "checkpoint"),
            number=snapshot.directory.id,
        ))  # fmt: skip
    return saved, unreachable


def _close(snapshot: ExperimentSnapshot) -> bool:
    """Record the deletion if nothing has happened since the experiment was read, and nobody needs a
    checkpoint at that very moment: who comes later sees that the experiment is gone.
    """
    directory = snapshot.directory
    facts = refuse_kept(directory)
    if facts.count != snapshot.facts.count:
        return False
    return directory.append_next(Intent(intent="delete"), facts.count)


def refuse_kept(directory: ExperimentDir) -> ExperimentFacts:
    """The facts of an experiment; `LifecycleError` where somebody needs a checkpoint of it."""
    mark_deleted(directory, ())  # lets go of what dead processes held
    facts = fold_facts(directory)
    if facts.problems:
        raise LifecycleError(
            f"a fact of experiment {directory.id} can't be read, and may say that a checkpoint is"
            f" needed: {facts.problems[0].path}: nothing is deleted"
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


_UNREACHABLE = """\
{where} is empty or can't be seen from here, and {checkpoints} of experiment {number} would stay \
there: delete it where that can be seen, or with --force if it is gone for good"""


class _Begun(NamedTuple):
    """A checkpoint that a run began to save, and its storage; None for the configured one."""

    uuid: str
    storage: dict[str, Any] | None


@dataclass(frozen=True)
class _Saved:
    """What an experiment has brought to storages; `storages` is None where nothing ever ran."""

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
        named: list[dict[str, Any]] = []
        for row in snapshot.trials.values():
            if row.run_count:
                begun |= started_checkpoints(snapshot.directory.trial(row.id), row.run_count)
                named += snapshot.read_trial(row.id).storages
        if not any(row.run_count for row in snapshot.trials.values()):
            return cls()
        sections = {repr(section): section for section in (None, *named)}
        checkpoints = tuple(_Begun(uuid, section) for uuid, section in begun.items())
        return cls(checkpoints, tuple(sections.values()), storages_of(snapshot.directory))

    def unreachable(self, directory: ExperimentDir) -> dict[str, str]:
        """Where files would stay behind that nobody knows of any more, by checkpoint."""
        if self.storages is None:
            return {}
        deleted = fold_facts(directory).checkpoints.deleted
        return self.storages.unreachable(c for c in self.checkpoints if c.uuid not in deleted)

    def discard(self, snapshot: ExperimentSnapshot, unreachable: Container[str]) -> None:
        """Remove checkpoints and TensorBoard's files."""
        if self.storages is None:
            return
        directory = snapshot.directory
        # Whoever was as fast as the deletion to keep one has it, though its experiment is gone.
        free = fold_facts(directory).checkpoints.unprotected(one.uuid for one in self.checkpoints)
        gone = [c for c in self.checkpoints if c.uuid in free and c.uuid not in unreachable]
        for one in gone:
            self.storages.discard(one)
        if gone:  # a storage that is empty now is not asked for when this is repeated
            directory.append(CheckpointDeleted(uuids=tuple(one.uuid for one in gone)))
        self.discard_tensorboard(snapshot)

    def discard_tensorboard(self, snapshot: ExperimentSnapshot) -> bool:
        """Remove TensorBoard's files where they can be seen; whether that is everywhere."""
        if self.storages is None or snapshot.facts.created.imported:
            return True  # it came without any, and an early copy's mark is the original's
        seen = [section for section in self.sections if self.storages.reachable(section)]
        for section in seen:
            _remove_tensorboard(snapshot.directory, self.storages.of(section))
        return len(seen) == len(self.sections)


def _remove_tensorboard(directory: ExperimentDir, storage: Storage) -> None:
    mark = directory.mark_in(getattr(storage, "base", None))
    folder = tensorboard_folder(directory.id, mark)
    # One with a mark is the experiment's from the top: no empty directories are left, either.
    storage.remove_files(folder.partition("/")[0] if mark else folder)


def _remove(directory: ExperimentDir, name: str) -> None:
    path = directory.path / name
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
