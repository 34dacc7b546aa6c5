"""The checkpoints that an experiment begins with: nobody deletes them while it exists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from detslurm.sdk.checkpoints.finding import SHORTEST, WHOLE, found_in
from detslurm.sdk.errors import LifecycleError, SubmitError
from detslurm.store import ExperimentDir, NotFound, Store, StoreError

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint

Sources = Mapping[int, tuple[str, ...]]
"""Checkpoints by the experiment that saved them."""


def checkpoint_id(store: Store, given: str) -> str:
    """The storage id of a checkpoint, of which the beginning is enough. Raises `SubmitError`.

    A whole one that no experiment of the store has saved may be in the storage nevertheless.
    """
    try:
        found = find_checkpoint(store, given) if len(given) >= SHORTEST else None
    except LifecycleError as error:
        raise SubmitError(str(error)) from error
    if found is None and len(given) < WHOLE:
        raise SubmitError(f"there is no checkpoint whose id begins with {given!r}")
    if found is not None and found.state == "DELETED":
        raise SubmitError(
            f"checkpoint {found.uuid} of experiment {found.experiment_id} was deleted"
        )
    return given if found is None else found.uuid


def find_checkpoint(store: Store, given: str) -> Checkpoint | None:
    """The checkpoint with this id, or whose id begins so; None if no experiment has saved it."""
    with suppress(NotFound):
        return found_in(store, given, lambda problem: None)
    return None


def source_checkpoint(config: Mapping[str, Any], store: Store) -> str | None:
    """The latest checkpoint of `searcher.source_trial_id` now: its trial may save others before the
    new trials begin, which shall all begin with the same one."""
    number = config["searcher"].get("source_trial_id")
    if number is None:
        return None
    from detslurm.store.reading import latest_checkpoint

    latest = latest_checkpoint(store, number)
    return None if latest is None else latest.uuid


def warm_start(
    config: Mapping[str, Any], store: Store, latest: str | None
) -> tuple[int, str] | None:
    """The checkpoint that the section `searcher` names, and the experiment that has saved it;
    `latest` is that of its `source_trial_id`."""
    number = config["searcher"].get("source_trial_id")
    uuid = config["searcher"].get("source_checkpoint_uuid")
    if number is not None:
        return None if latest is None else (store.find_trial(number).experiment_id, latest)
    found = None if uuid is None else find_checkpoint(store, uuid)
    return None if found is None else (found.experiment_id, found.uuid)


def warm_start_sources(store: Store, found: tuple[int, str] | None) -> dict[int, tuple[str, ...]]:
    """What a warm start begins with, as far as it is this user's to protect."""
    if found is None or store.experiment(found[0]).foreign_owner():
        return {}
    return {found[0]: (found[1],)}


def source_notes(store: Store, found: tuple[int, str] | None) -> list[str]:
    """What is to be known of a warm start with what belongs to somebody else."""
    if found is None or (owner := store.experiment(found[0]).foreign_owner()) is None:
        return []
    return [
        f"checkpoint {found[1]} of experiment {found[0]} belongs to {owner}, who may delete it"
        " before the new trials begin; a version in a model of theirs protects it"
    ]


@contextmanager
def holding(store: Store, sources: Sources) -> Iterator[None]:
    """Nobody deletes them inside of the block. Raises `CheckpointGone` where somebody has.

    A submission that breaks off protects nothing: its process is then known to be dead.
    """
    if not sources:
        yield
        return
    from detslurm.store.checkpoint_facts import held

    with ExitStack() as stack:
        for number, uuids in sources.items():
            stack.enter_context(held(store.experiment(number), uuids, by="a submission"))
        yield


def keep_sources(experiment: ExperimentDir, sources: Sources) -> None:
    """Protect them as long as the experiment exists."""
    for number, uuids in sources.items():
        from detslurm.store.checkpoint_facts import keep

        keep(experiment.store.experiment(number), uuids, by=_name(experiment))


def release_sources(experiment: ExperimentDir) -> None:
    """The experiment is being deleted: it needs them no longer."""
    from detslurm.store import fold_facts
    from detslurm.store.checkpoint_facts import release

    for number in experiment.created().sources:
        try:
            source = experiment.store.experiment(number)
            kept = fold_facts(source).checkpoints.kept
            for n, fact in kept.items():
                if fact.kept_by == _name(experiment):
                    release(source, n)
        except NotFound:
            continue
        except StoreError:
            if not source.foreign_owner():
                raise


def _name(experiment: ExperimentDir) -> str:
    return f"experiment {experiment.id}"
