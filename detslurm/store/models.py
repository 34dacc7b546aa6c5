"""The model registry's facts, and the pure fold that turns them into models and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import msgspec

from detslurm._base import access
from detslurm.store.errors import CorruptRecord, NotFound, Refused, StoreError
from detslurm.store.facts import REFUSED, format_of
from detslurm.store.records import Corrupt, Record

_ROOT = 0

Row = TypeVar("Row", bound="RegistryRow")


class ModelCreated(Record, frozen=True, tag="model_created"):
    """A model exists; the number of this fact is its id."""

    name: str
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    workspace: str | None = None


class ModelChanged(Record, frozen=True, tag="model_changed"):
    """Fields of a model, or of a version of it, have other values."""

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


class RegistryRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The description of a model or of a version."""

    name: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created: float | None = None
    updated: float | None = None
    user: str = ""


class VersionRow(RegistryRow, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a model: its checkpoint and its description."""

    number: int
    uuid: str
    experiment: int
    trial: int
    steps: int = 0
    kept: int | None = None


class ModelRow(RegistryRow, frozen=True, kw_only=True, omit_defaults=True):
    """A model; facts about it count if the user with the id `owner` wrote them."""

    id: int
    owner: int | None
    description: str = ""
    workspace: str | None = None
    archived: bool = False
    last_version: int = 0
    versions: dict[int, VersionRow] = {}

    def version(self, number: int) -> VersionRow:
        """The version of that number; raises `NotFound`."""
        row = self.versions.get(number)
        if row is not None:
            return row
        was = "was deleted" if 0 < number <= self.last_version else "does not exist"
        raise NotFound(f"version {number} of model {self.name!r} {was}")


class RegistryState(msgspec.Struct, kw_only=True):
    """The fold of the registry up to fact `position`; models are by id."""

    position: int = 0
    models: dict[int, ModelRow] = {}
    # The number of facts that this user can't read now, though they may become readable.
    refused: int = 0
    missing: str = ""  # the path of the first fact that was lost
    format: int = 1  # the newest of its facts
    problems: list[str] = []

    def model(self, which: int | str) -> ModelRow:
        """The model of that id or name; raises `NotFound`."""
        row = self.models.get(which) if isinstance(which, int) else self.named(which)
        if row is None:
            raise NotFound(f"there is no model {which!r}")
        return row

    def named(self, name: str) -> ModelRow | None:
        """The model with this name; None without such a model."""
        return next((model for model in self.models.values() if model.name == name), None)

    def needs(self, experiment: int, number: int) -> bool:
        """Whether a version's checkpoint is protected by this fact of its experiment."""
        return any(
            (version.experiment, version.kept) == (experiment, number)
            for model in self.models.values()
            for version in model.versions.values()
        )

    def accept(self, plain: Mapping[str, Any], author: int | None) -> str | None:
        """Fold in the next fact, which the user `author` wrote; returns why it has no effect."""
        self.position = plain["n"]
        self.format = max(self.format, format_of(plain))
        is_newer = plain.get("type") == "corrupt" and "v" in plain
        self.refused += plain.get("type") == REFUSED or bool(plain.get("missing")) or is_newer
        if plain.get("missing"):
            self.missing = self.missing or str(plain["path"])
        problem = self._fold(_typed(plain), author)
        if problem is not None:
            self.problems.append(problem)
        return problem

    def _fold(self, fact: ModelFact | None, author: int | None) -> str | None:
        if fact is None:
            return None  # a newer version wrote it
        if isinstance(fact, Corrupt):
            return f"{fact.path}: {fact.problem}"
        try:
            row = self.after(fact, author)
        except StoreError as error:
            return f"fact {fact.n} of the model registry has no effect: {error}"
        if row is not None:
            self.models[row.id] = row
        elif isinstance(fact, ModelDeleted):
            del self.models[fact.model]
        return None

    def after(self, fact: Record, author: int | None) -> ModelRow | None:
        """A fact's model as it is after the fact, None where the fact deletes it.

        Raises `StoreError` if a fact that `author` writes now has no effect.
        """
        if isinstance(fact, ModelCreated):
            self._check_free(fact.name)
            own = {"id": fact.n, "owner": author, "user": fact.by or str(author)}
            return _row(ModelRow, fact, own, created=fact.time, updated=fact.time)
        assert isinstance(fact, ModelChanged | ModelDeleted | VersionRegistered | VersionDeleted)
        model = self._own(fact.model, author)
        if isinstance(fact, ModelDeleted):
            return None
        if isinstance(fact, ModelChanged) and fact.version is None:
            if fact.fields.get("name", model.name) != model.name:
                self._check_free(fact.fields["name"])
            return _changed(ModelRow, model, fact)
        return _with_versions(model, fact)

    def _check_free(self, name: str) -> None:
        if holder := self.named(name):
            raise Refused(f"there is a model {name!r} already (id {holder.id})")

    def _own(self, number: int, author: int | None) -> ModelRow:
        model = self.model(number)
        # Some file servers map all users to one: every user who may write there may write this.
        if author not in (model.owner, _ROOT) and model.owner != access.NOBODY:
            raise Refused(f"model {model.name!r} belongs to {model.user}, who alone may change it")
        return model


def _with_versions(
    model: ModelRow, fact: ModelChanged | VersionRegistered | VersionDeleted
) -> ModelRow:
    versions, last = dict(model.versions), model.last_version
    match fact:
        case VersionRegistered():
            last += 1
            own = {"number": last, "user": fact.by or ""}
            versions[last] = _row(VersionRow, fact, own, created=fact.time, updated=fact.time)
        case VersionDeleted():
            del versions[model.version(fact.version).number]
        case ModelChanged(version=number):
            version = model.version(number or 0)
            versions[version.number] = _changed(VersionRow, version, fact)
    return msgspec.structs.replace(model, versions=versions, last_version=last, updated=fact.time)


_FIXED = frozenset({"id", "owner", "number", "uuid", "experiment", "trial", "versions"})


def _changed(kind: type[Row], row: Row, fact: ModelChanged) -> Row:
    if wrong := _FIXED & fact.fields.keys():
        raise CorruptRecord(f"{sorted(wrong)[0]} can't be changed")
    return _row(kind, row, fact.fields, updated=fact.time)


def _row(kind: type[Row], source: msgspec.Struct, fields: Mapping[str, Any], **times: Any) -> Row:
    """A row with the values of a fact or of another row; raises `CorruptRecord` if one can't be."""
    try:
        return msgspec.convert({**msgspec.to_builtins(source), **fields, **times}, kind)
    except msgspec.ValidationError as error:
        raise CorruptRecord(str(error)) from error


def _typed(plain: Mapping[str, Any]) -> ModelFact | None:
    """A fact with its type; None for a kind that this version does not know."""
    kind = Corrupt if plain.get("type") == REFUSED else _KINDS.get(plain.get("type"))
    if kind is None:
        return None
    try:
        fact: ModelFact = msgspec.convert({**plain, "type": kind.__struct_config__.tag}, kind)
    except msgspec.ValidationError as error:
        n = plain.get("n", 0)
        return Corrupt(n=n, path=f"models/{n:06d}.json", problem=str(error))
    return fact
