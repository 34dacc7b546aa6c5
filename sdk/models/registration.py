"""How checkpoints become versions of models: their files are protected before, and until after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from detslurm._process import Identity
from detslurm.sdk.errors import LifecycleError
from detslurm.store import NotFound, StoreError
from detslurm.store import checkpoint_facts as facts
from detslurm.store.errors import Refused
from detslurm.store.models import ModelRow, RegistryState, VersionRegistered, VersionRow

if TYPE_CHECKING:
    from detslurm.sdk.models.registry import Registry


def register(registry: Registry, model: ModelRow, uuid: str, **about: Any) -> RegistryState:
    """Make a checkpoint the next version of a model; returns the registry after it.

    The checkpoint is kept for this process first. Once the registry names that fact, it protects
    the checkpoint for good; where the process dies before, the protection ends with it.
    """
    checkpoint = registry.checkpoint(uuid)
    directory = registry.store.experiment(checkpoint.experiment_id)
    if owner := directory.foreign_owner():
        raise LifecycleError(
            f"checkpoint {checkpoint.uuid} belongs to {owner}, whose jobs may delete it: "
            f"{owner} alone can register it"
        )
    if checkpoint.path is not None and not checkpoint.path.is_dir():
        raise LifecycleError(f"the files of checkpoint {checkpoint.uuid} are gone")
    own = [checkpoint.uuid]
    kept = facts.keep(directory, own, by=f"model {model.name}", holder=Identity.own())
    fact = VersionRegistered(
        model=model.id,
        uuid=checkpoint.uuid,
        experiment=checkpoint.experiment_id,
        trial=checkpoint.trial_id,
        steps=checkpoint.steps_completed,
        kept=kept,
        **about,
    )
    try:
        return registry.store.models.commit(lambda state: fact)
    except (NotFound, Refused):  # after other errors the fact may be there
        facts.release(directory, kept)
        raise


def release(registry: Registry, versions: Iterable[VersionRow]) -> None:
    """Let the checkpoints of versions that are gone be deleted."""
    for version in versions:
        if version.kept is None:
            continue
        try:
            facts.release(registry.store.experiment(version.experiment), version.kept)
        except StoreError as error:
            registry.warn(f"checkpoint {version.uuid} stays protected: {error}")
