"""Keeping and deleting checkpoints, by any number of processes at once and without locks.

Files are removed only after the fact that deletes their checkpoint is on disk. A crash in between
leaves files without a checkpoint, never a checkpoint without files.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from detslurm._base.process import Identity
from detslurm.store import fs
from detslurm.store.errors import NotFound, StoreError, StoreFault
from detslurm.store.reading import fold_facts
from detslurm.store.records import (
    CheckpointDeleted,
    CheckpointFilesRemoved,
    CheckpointKept,
    CheckpointReleased,
)

if TYPE_CHECKING:
    from detslurm.store.experiment import ExperimentDir
    from detslurm.store.experiment_fold import ExperimentFacts


LONGEST_HOLD: Final = 7 * 86400
"""Seconds after which a hold counts no more, where it can't be known whether its process lives."""


class CheckpointGone(StoreError):
    """A checkpoint that was to be kept has been deleted."""


class Deletion(NamedTuple):
    """The checkpoints that are deleted now, whose files may be removed, the protection of each of
    the others, by id, and the facts that decided this."""

    deleted: tuple[str, ...]
    kept: dict[str, str]
    facts: ExperimentFacts


def keep(
    directory: ExperimentDir,
    uuids: Iterable[str],
    *,
    by: str,
    holder: Identity | None = None,
    experiment: int | None = None,
) -> int:
    """Protect checkpoints of an experiment from being deleted; returns the number to `release`.

    `by` names their user, for people. With a `holder` they are protected while that process lives,
    and for good once the other `experiment`, if any, was created. Raises `CheckpointGone` where one
    is deleted: then none is protected by this.
    """
    wanted = tuple(dict.fromkeys(uuids))
    named = None if holder is None else str(holder)
    number = directory.append(
        CheckpointKept(uuids=wanted, kept_by=by, holder=named, experiment=experiment)
    )
    found = fold_facts(directory).checkpoints
    if number not in found.kept:
        gone = [uuid for uuid in wanted if found.closed or uuid in found.deleted]
        raise CheckpointGone(
            f"checkpoint {', '.join(gone)} of experiment {directory.id} has been deleted"
        )
    return number


def release(directory: ExperimentDir, number: int) -> None:
    """Take back what `keep` did under this number."""
    directory.append(CheckpointReleased(kept=number))


@contextmanager
def held(directory: ExperimentDir, uuids: Iterable[str], *, by: str) -> Iterator[None]:
    """Protect these checkpoints inside of the block, as long as this process lives. Raises as
    `keep`."""
    try:
        number = keep(directory, uuids, by=by, holder=Identity.own())
    except StoreFault as fault:
        if fault.errno != errno.EROFS:
            raise
        yield  # a read-only file system: if others delete the checkpoint, the reader finds out
        return
    try:
        yield
    finally:
        with suppress(StoreFault):  # on a full disk: the hold ends with the process
            release(directory, number)


def mark_deleted(directory: ExperimentDir, uuids: Iterable[str]) -> Deletion:
    """Record checkpoints of an experiment as deleted, as far as nothing protects them; then the
    caller removes the files of the deleted ones."""
    wanted = tuple(dict.fromkeys(uuids))
    facts = _release_dead_holders(directory, fold_facts(directory))
    if facts.problems:
        return Deletion((), dict.fromkeys(wanted, _unreadable(facts)), facts)
    free = facts.checkpoints.unprotected(wanted) - facts.checkpoints.deleted
    named = registered(directory, free) if free else {}
    if chosen := tuple(uuid for uuid in wanted if uuid in free and uuid not in named):
        directory.append(CheckpointDeleted(uuids=chosen), facts.count)
        facts.fold(directory.facts(facts.count))
        if facts.problems:  # an unreadable fact in between may protect them
            return Deletion((), dict.fromkeys(wanted, _unreadable(facts)), facts)
    found = facts.checkpoints
    kept = {uuid: fact.kept_by for uuid in wanted if (fact := found.protection(uuid))} | named
    return Deletion(tuple(uuid for uuid in wanted if uuid in found.deleted), kept, facts)


def mark_files_removed(
    directory: ExperimentDir, uuid: str, resources: Mapping[str, int]
) -> str | None:
    """Record that only `resources` are left of a checkpoint; the caller removes the other files.

    Returns its protection, if any: then nothing may be removed.
    """
    facts = _release_dead_holders(directory, fold_facts(directory))
    if facts.problems:
        return _unreadable(facts)
    if found := facts.checkpoints.protection(uuid):
        return found.kept_by
    if named := registered(directory, [uuid]):
        return named[uuid]
    fact = CheckpointFilesRemoved(uuid=uuid, resources=dict(resources))
    directory.append(fact, facts.count)
    checkpoints = facts.fold(directory.facts(facts.count)).checkpoints
    if checkpoints.resources.get(uuid) == fact.resources:
        return None
    kept = checkpoints.protection(uuid)
    return kept.kept_by if kept else "another process"


def registered(directory: ExperimentDir, uuids: Iterable[str] | None = None) -> dict[str, str]:
    """The checkpoints among these (by default all) that are versions of models, by the registry.

    A fact of the experiment protects each of them as well, but the last fact may be lost unnoticed.
    """
    owner = fs.owner_of(directory.path, follow=False)  # others may register what they like
    found = {
        version.uuid: f"version {version.number} of model {model.name}"
        for model in directory.store.models.state().models.values()
        for version in model.versions.values()
        if (version.experiment, model.owner) == (directory.id, owner)
    }
    return found if uuids is None else {u: found[u] for u in uuids if u in found}


def _unreadable(facts: ExperimentFacts) -> str:
    """The protection of any checkpoint by an unreadable fact."""
    return f"a fact that can't be read ({facts.problems[0].path})"


def _release_dead_holders(directory: ExperimentDir, facts: ExperimentFacts) -> ExperimentFacts:
    for number, fact in list(facts.checkpoints.kept.items()):
        holder = Identity.parse(fact.holder) if fact.holder else None
        if holder is None or not _is_over(directory, number, holder):
            continue
        if not _needed_for_good(directory, number, fact):
            release(directory, number)
    return facts.fold(directory.facts(facts.count))


def _is_over(directory: ExperimentDir, number: int, holder: Identity) -> bool:
    """Whether a holder is dead, or has held for too long on a machine that can't be asked."""
    alive = holder.alive()
    if alive is not None:
        return not alive
    # Both by the clock of the file server, because the clocks of nodes may differ.
    written, now = fs.modified(directory.log.name(number)), fs.time_there(directory.log.path)
    return written is not None and now is not None and now - written > LONGEST_HOLD


def _needed_for_good(directory: ExperimentDir, number: int, fact: CheckpointKept) -> bool:
    """Whether an experiment or a version of a model still needs a checkpoint that a process
    kept."""
    if fact.experiment is not None:
        try:
            directory.store.experiment(fact.experiment)
        except NotFound:
            return False
        except StoreError:  # unreadable: it may be there
            pass
        return True
    state = directory.store.models.state()
    return bool(state.problems) or state.needs(directory.id, number)
