"""The checkpoints that an experiment begins with: they stay while it exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from detslurm._base.process import Identity
from detslurm.sdk.checkpoints.finding import SHORTEST, WHOLE, found_in
from detslurm.sdk.errors import LifecycleError, SubmitError
from detslurm.store import ExperimentDir, NotFound, Store, StoreError, fold_facts
from detslurm.store.checkpoint_facts import keep, release
from detslurm.store.reading import latest_checkpoint

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint

Sources = Mapping[int, tuple[str, ...]]
"""Checkpoints by the experiment that saved them."""


def checkpoint_id(store: Store, given: str) -> str:
    """The storage id of a checkpoint, by its beginning or as a whole. Raises `SubmitError`. A whole
    id that no experiment of the store has saved may be in the storage nevertheless."""
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
    """The latest checkpoint of `searcher.source_trial_id` now, with which all new trials begin."""
    number = config["searcher"].get("source_trial_id")
    if number is None:
        return None
    latest = latest_checkpoint(store, number)
    return None if latest is None else latest.uuid


def warm_start(
    config: Mapping[str, Any], store: Store, latest: str | None
) -> tuple[int, str] | None:
    """The experiment and id of the checkpoint that `searcher` names; `latest` is its trial's."""
    number = config["searcher"].get("source_trial_id")
    uuid = config["searcher"].get("source_checkpoint_uuid")
    if number is not None:
        return None if latest is None else (store.find_trial(number).experiment_id, latest)
    found = None if uuid is None else find_checkpoint(store, uuid)
    return None if found is None else (found.experiment_id, found.uuid)


def source_outputs(config: Mapping[str, Any], store: Store) -> str | None:
    """The directory that `searcher.source_checkpoint_uuid` names, if it is one of outputs."""
    uuid = config["searcher"].get("source_checkpoint_uuid")
    if uuid is None or config.get("outputs") is None:
        return None
    found = find_checkpoint(store, uuid)
    return found.location if found is not None and found.kind is not None else None


def warm_start_sources(store: Store, found: tuple[int, str] | None) -> dict[int, tuple[str, ...]]:
    """The checkpoint of a warm start, as far as it is this user's to protect."""
    if found is None or store.experiment(found[0]).foreign_owner():
        return {}
    return {found[0]: (found[1],)}


def source_notes(store: Store, found: tuple[int, str] | None) -> list[str]:
    """The warning about a warm start from another user's checkpoint."""
    if found is None or (owner := store.experiment(found[0]).foreign_owner()) is None:
        return []
    return [
        f"checkpoint {found[1]} of experiment {found[0]} belongs to {owner}, who may delete it"
        " before the new trials begin; a version in a model of theirs protects it"
    ]


@contextmanager
def keeping(sources: Sources) -> Iterator[Callable[[ExperimentDir], None]]:
    """Yield a function that protects them for an experiment, as long as it exists, and is called
    before it is created. It raises `CheckpointGone` where any was deleted.

    Without the experiment they are free again: at once after an error, else when this process is
    known to be dead.
    """
    made: list[tuple[ExperimentDir, ExperimentDir, int]] = []

    def keep_for(experiment: ExperimentDir) -> None:
        name, own = _name(experiment), Identity.own()
        for number, uuids in sources.items():
            source = experiment.store.experiment(number)
            fact = keep(source, uuids, by=name, holder=own, experiment=experiment.id)
            made.append((experiment, source, fact))

    try:
        yield keep_for
    except BaseException:
        for experiment, source, fact in made:
            with suppress(StoreError):
                if not experiment.was_created():
                    release(source, fact)
        raise


def release_sources(experiment: ExperimentDir) -> None:
    """The experiment is being deleted: it needs them no longer."""
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
