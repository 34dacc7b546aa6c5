"""The fold that turns the registry's facts into models and their versions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from detslurm import _access
from detslurm.store.errors import CorruptRecord, NotFound, Refused, StoreError
from detslurm.store.facts import REFUSED
from detslurm.store.model_records import (
    ModelChanged,
    ModelCreated,
    ModelDeleted,
    ModelFact,
    VersionDeleted,
    VersionRegistered,
    typed_model_fact,
)
from detslurm.store.records import Corrupt, Record, plain_of

_ROOT = 0


class VersionRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a model: which checkpoint it is, and what was said of it."""

    number: int
    uuid: str
    experiment: int
    trial: int
    steps: int = 0
    kept: int | None = None
    name: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    created: float | None = None
    updated: float | None = None
    user: str = ""


class ModelRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model; facts about it count if the user with the id `owner` wrote them."""

    id: int
    name: str
    owner: int | None
    user: str = ""
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    workspace: str | None = None
    archived: bool = False
    created: float | None = None
    updated: float | None = None
    last_version: int = 0
    versions: dict[int, VersionRow] = msgspec.field(default_factory=dict)

    def version(self, number: int) -> VersionRow:
        """The version of that number; raises `NotFound`."""
        found = self.versions.get(number)
        if found is not None:
            return found
        was = "was deleted" if 0 < number <= self.last_version else "does not exist"
        raise NotFound(f"version {number} of model {self.name!r} {was}")


class RegistryState(msgspec.Struct, kw_only=True):
    """The fold of the registry up to fact `position`; models are by id."""

    position: int = 0
    models: dict[int, ModelRow] = msgspec.field(default_factory=dict)
    # Of all facts, how many this user can't read now, though they may come to be readable.
    refused: int = 0
    missing: str = ""  # the path of the first fact that was lost
    problems: list[str] = msgspec.field(default_factory=list)

    def model(self, which: int | str) -> ModelRow:
        """The model of that id or name; raises `NotFound`."""
        found = self.models.get(which) if isinstance(which, int) else self.named(which)
        if found is None:
            raise NotFound(f"there is no model {which!r}")
        return found

    def named(self, name: str) -> ModelRow | None:
        """The model that has a name, if there is one."""
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
        self.refused += plain.get("type") == REFUSED or bool(plain.get("missing"))
        if plain.get("missing"):
            self.missing = self.missing or str(plain["path"])
        fact = typed_model_fact(plain)
        if fact is None:
            return None  # a newer version wrote it
        problem = self._problem(fact, author)
        if problem is None:
            self._apply(fact, author)
        else:
            self.problems.append(problem)
        return problem

    def _problem(self, fact: ModelFact, author: int | None) -> str | None:
        if isinstance(fact, Corrupt):
            return f"{fact.path}: {fact.problem}"
        try:
            self.check(fact, author)
        except StoreError as error:
            return f"fact {fact.n} of the model registry has no effect: {error}"
        return None

    def _apply(self, fact: ModelFact, author: int | None) -> None:
        match fact:
            case ModelCreated():
                self.models[fact.n] = _model(fact, author)
            case ModelDeleted():
                del self.models[fact.model]
            case ModelChanged() | VersionRegistered() | VersionDeleted():
                self.models[fact.model] = _changed(self.models[fact.model], fact)

    def check(self, fact: Record, author: int | None) -> None:
        """Raise `StoreError` if a fact that `author` would write now had no effect."""
        match fact:
            case ModelCreated():
                self._check_free(fact.name)
            case ModelChanged(version=None):
                model = self._own(fact.model, author)
                if fact.fields.get("name", model.name) != model.name:
                    self._check_free(fact.fields["name"])
                _checked(ModelRow, model, fact.fields)
            case ModelChanged() | VersionDeleted():
                version = self._own(fact.model, author).version(fact.version or 0)
                _checked(VersionRow, version, getattr(fact, "fields", {}))
            case VersionRegistered() | ModelDeleted():
                self._own(fact.model, author)

    def _check_free(self, name: str) -> None:
        if holder := self.named(name):
            raise Refused(f"there is a model {name!r} already (id {holder.id})")

    def _own(self, number: int, author: int | None) -> ModelRow:
        model = self.model(number)
        # Some file servers call all users nobody: then who may write there at all may write this.
        if author not in (model.owner, _ROOT) and model.owner != _access.NOBODY:
            raise Refused(f"model {model.name!r} belongs to {model.user}, who alone may change it")
        return model


_FIXED = frozenset({"id", "owner", "number", "uuid", "experiment", "trial", "versions"})


def _checked(kind: type[Any], row: Any, fields: Mapping[str, Any]) -> Any:
    """A row with other values; raises `CorruptRecord` if one of them can't be."""
    if wrong := _FIXED & fields.keys():
        raise CorruptRecord(f"{sorted(wrong)[0]} can't be changed")
    try:
        return msgspec.convert({**msgspec.to_builtins(row), **fields}, kind)
    except msgspec.ValidationError as error:
        raise CorruptRecord(str(error)) from error


def _model(fact: ModelCreated, author: int | None) -> ModelRow:
    about = {key: value for key, value in plain_of(fact).items() if key in _ABOUT}
    row = ModelRow(id=fact.n, name=fact.name, owner=author, user=fact.by or str(author))
    found: ModelRow = _checked(ModelRow, row, about)
    return replace(found, created=fact.time, updated=fact.time)


_ABOUT = frozenset({"description", "notes", "labels", "metadata", "workspace"})


def _changed(model: ModelRow, fact: ModelChanged | VersionRegistered | VersionDeleted) -> ModelRow:
    versions = dict(model.versions)
    match fact:
        case ModelChanged(version=None):
            changed: ModelRow = _checked(ModelRow, model, fact.fields)
            return replace(changed, updated=fact.time)
        case ModelChanged(version=int(number)):
            changed_version = _checked(VersionRow, versions[number], fact.fields)
            versions[number] = replace(changed_version, updated=fact.time)
        case VersionDeleted():
            del versions[fact.version]
        case VersionRegistered():
            number = model.last_version + 1
            versions[number] = _version(number, fact)
            model = replace(model, last_version=number)
    return replace(model, versions=versions, updated=fact.time)


def _version(number: int, fact: VersionRegistered) -> VersionRow:
    return VersionRow(
        number=number,
        uuid=fact.uuid,
        experiment=fact.experiment,
        trial=fact.trial,
        steps=fact.steps,
        kept=fact.kept,
        name=fact.name,
        notes=fact.notes,
        labels=fact.labels,
        metadata=fact.metadata,
        created=fact.time,
        updated=fact.time,
        user=fact.by or "",
    )
