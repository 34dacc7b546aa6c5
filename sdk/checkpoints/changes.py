"""Deleting checkpoints and parts of them, and editing their metadata."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detslurm.sdk.checkpoints.catalog import (
    correct_links_of,
    needed_by_search,
    storages_of,
    unreachable_problems,
)
from detslurm.sdk.checkpoints.verification import as_recorded, verify_again
from detslurm.sdk.errors import LifecycleError
from detslurm.storage import SharedFS, list_resources
from detslurm.storage.names import matching
from detslurm.store import CheckpointView, ExperimentDir, StoreError, fold_facts, fold_trial
from detslurm.store.checkpoint_facts import mark_files_removed
from detslurm.store.frame import decode_json, encode_json
from detslurm.store.gc import needed_by, remove, resumed_from
from detslurm.store.records import CheckpointMetadata

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint


def edit_metadata(
    checkpoint: Checkpoint, changes: Mapping[str, Any], removed: Iterable[str]
) -> None:
    """Record other metadata of a checkpoint."""
    _refuse_others(checkpoint._directory)
    _refuse_deleted(checkpoint.reload())
    try:
        plain = decode_json(encode_json(dict(changes)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata must be plain data as JSON has it: {error}") from error
    gone = tuple(key for key in removed if key in checkpoint.metadata)
    if plain or gone:
        fact = CheckpointMetadata(uuid=checkpoint.uuid, set=plain, remove=gone)
        checkpoint._directory.append(fact)
        checkpoint.reload()


def delete(directory: ExperimentDir, checkpoints: Sequence[Checkpoint]) -> None:
    """Delete checkpoints of one experiment with their files; a needed one raises at the end."""
    _refuse_others(directory)
    needed = _needed(directory, checkpoints)
    free = [_recorded(one) for one in checkpoints if one.uuid not in needed]
    done = remove(directory, free, storages_of(directory))
    problems = [f"checkpoint {u} is needed by {by}" for u, by in {**needed, **done.kept}.items()]
    problems += [*done.problems, *unreachable_problems(done.unreachable)]
    gone = {one.uuid for one in (*done.deleted, *done.left)}
    for one in checkpoints:
        if one.uuid in gone:
            one.state = "DELETED"
    correct_links_of(directory)
    if problems:
        raise LifecycleError("; ".join(problems))


def _recorded(one: Checkpoint) -> CheckpointView:
    """The facts of it that a deletion needs."""
    return CheckpointView(
        uuid=one.uuid,
        trial=one.trial_id,
        run=0,
        steps=one.steps_completed,
        storage=one._row.storage,
    )


def remove_files(
    directory: ExperimentDir, checkpoint: Checkpoint, globs: Sequence[str]
) -> list[str]:
    """Delete the files that match the patterns; the record of the other files comes first."""
    _refuse_others(directory)
    _refuse_deleted(checkpoint.reload())
    storage = checkpoint._storage
    if not storage.is_visible(directory.store.path):
        raise LifecycleError(f"{storage.where} is empty or can't be seen from here")
    if not storage.exists(checkpoint.uuid):
        raise LifecycleError(f"the files of checkpoint {checkpoint.uuid} are not there any more")
    # As it was recorded: a link to a directory, as a PyTorchTrial's to its code, has no files.
    if isinstance(storage, SharedFS):
        there = list_resources(storage.path(checkpoint.uuid))
    else:
        there = storage.resources(checkpoint.uuid)
    doomed = matching(there, globs)
    stay = {as_recorded(name): size for name, size in there.items() if name not in doomed}
    if not any(not name.endswith("/") for name in stay):
        delete(directory, [checkpoint])
        return sorted(doomed)
    left, recorded = stay, checkpoint.resources
    if globs:  # the other files' record stays, whatever they are
        gone = {*map(as_recorded, doomed), *matching(recorded, globs)}
        left = {name: size for name, size in recorded.items() if name not in gone}
    if left == recorded and not doomed:
        return []
    kept = _needed(directory, [checkpoint]).get(checkpoint.uuid) if doomed else None
    kept = kept or mark_files_removed(directory, checkpoint.uuid, left)
    if kept:
        raise LifecycleError(f"checkpoint {checkpoint.uuid} is needed by {kept}")
    if doomed:
        # Only now, with the fact on disk: see the top of store.gc.
        number = checkpoint.trial_id
        context = fold_facts(directory).context(number)
        if checkpoint.uuid in resumed_from(directory.trial(number).runs(), context):
            raise LifecycleError(f"a run has begun with checkpoint {checkpoint.uuid}: it stays")
        with directory.as_owner():
            storage.delete(checkpoint.uuid, globs)
    with contextlib.suppress(StoreError, OSError):  # as on a full disk: the files are gone
        verify_again(checkpoint)
    checkpoint.reload()
    correct_links_of(directory)
    return sorted(name for name in doomed if not name.endswith("/"))


def _needed(directory: ExperimentDir, checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    """The checkpoints that a trial has to find or a search may start from, each with the reason."""
    facts = fold_facts(directory)
    by_search = f"the search of experiment {directory.id}, which may start a trial from it"
    found = dict.fromkeys(needed_by_search(directory, facts), by_search)
    for number in {one.trial_id for one in checkpoints}:
        trial, context = directory.trial(number), facts.context(number)
        found |= needed_by(fold_trial(trial, context), trial.runs(), context)
    return {one.uuid: found[one.uuid] for one in checkpoints if one.uuid in found}


def _refuse_others(directory: ExperimentDir) -> None:
    if owner := directory.foreign_owner():
        raise LifecycleError(
            f"experiment {directory.id} belongs to {owner}, who alone may change its checkpoints"
        )


def _refuse_deleted(checkpoint: Checkpoint) -> None:
    if checkpoint.state == "DELETED":
        raise LifecycleError(f"checkpoint {checkpoint.uuid} was deleted")
