"""The facts of the model registry, each kind with a type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from detslurm.store.facts import REFUSED
from detslurm.store.records import Corrupt, Record


class ModelCreated(Record, frozen=True, tag="model_created"):
    """A model exists; the number of this fact is its id."""

    name: str
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    workspace: str | None = None


class ModelChanged(Record, frozen=True, tag="model_changed"):
    """Fields of a model, or of one of its versions, have other values."""

    model: int
    fields: dict[str, Any]
    version: int | None = None


class ModelDeleted(Record, frozen=True, tag="model_deleted"):
    """A model and all its versions are gone; its name is free."""

    model: int


class VersionRegistered(Record, frozen=True, tag="version_registered"):
    """A checkpoint became the next version of a model.

    `kept` is the number of the fact of its experiment that keeps the checkpoint's files.
    """

    model: int
    uuid: str
    experiment: int
    trial: int
    steps: int = 0
    kept: int | None = None
    name: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class VersionDeleted(Record, frozen=True, tag="version_deleted"):
    """A version is gone; its number is not given again."""

    model: int
    version: int


ModelFact = (
    ModelCreated | ModelChanged | ModelDeleted | VersionRegistered | VersionDeleted | Corrupt
)
_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(ModelFact)}


def typed_model_fact(plain: Mapping[str, Any]) -> ModelFact | None:
    """A fact with its type; None for a kind that this version does not know."""
    kind = Corrupt if plain.get("type") == REFUSED else _KINDS.get(plain.get("type"))
    if kind is None:
        return None
    try:
        found: ModelFact = msgspec.convert({**plain, "type": kind.__struct_config__.tag}, kind)
    except msgspec.ValidationError as error:
        n = plain.get("n", 0)
        return Corrupt(n=n, path=f"models/{n:06d}.json", problem=str(error))
    return found
