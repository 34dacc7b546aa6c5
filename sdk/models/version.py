"""A version of a model as an object: a checkpoint with a number that people can rely on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from detslurm.sdk import settings
from detslurm.sdk.trials.metrics import moment
from detslurm.store import StoreError
from detslurm.store.checkpoint_facts import release
from detslurm.store.models import (
    ModelChanged,
    ModelRow,
    RegistryRow,
    RegistryState,
    VersionDeleted,
    VersionRow,
)

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.models.registry import Registry
    from detslurm.sdk.trials.metrics import TrialMetrics

Row = TypeVar("Row", bound=RegistryRow)


class Described(ABC, Generic[Row]):
    """A model or a version, as it was when it was read last."""

    def __init__(self, registry: Registry, model: ModelRow, version: int | None = None) -> None:
        self._registry = registry
        self._model = model
        self._version_number = version

    @property
    @abstractmethod
    def row(self) -> Row:
        """Everything that was read of it last."""

    @property
    def model_id(self) -> int:
        """The model's id."""
        return self._model.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.row.name

    @property
    def notes(self) -> str:
        """Notes for its users."""
        return self.row.notes

    @property
    def labels(self) -> list[str]:
        """Its labels, in order."""
        return list(self.row.labels)

    @property
    def metadata(self) -> dict[str, Any]:
        """Plain data that its users have added."""
        return dict(self.row.metadata)

    @property
    def username(self) -> str:
        """The name of the user who made it."""
        return self.row.user

    @property
    def creation_time(self) -> datetime | None:
        """When it was made, in UTC; None if that was not recorded."""
        return moment(self.row.created)

    @property
    def last_updated_time(self) -> datetime | None:
        """When it was changed last, in UTC; None if that was not recorded."""
        return moment(self.row.updated)

    def reload(self) -> Self:
        """Return this object, read again from the store; `NotFound` if it was deleted."""
        self._take(self._registry.registry_state())
        return self

    def set_notes(self, notes: str) -> None:
        """Replace its notes by the text `notes`."""
        self._change(lambda row: {"notes": settings.text("notes", notes)})

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels by `labels`, a list of lines."""
        wanted = settings.labels(labels)
        self._change(lambda row: {"labels": wanted})

    def add_labels(self, labels: Iterable[str]) -> None:
        """Add `labels`, a list of lines."""
        more = settings.labels(labels)
        self._change(lambda row: {"labels": sorted({*row.labels, *more})})

    def remove_labels(self, labels: Iterable[str]) -> None:
        """Remove `labels`, a list; those that it does not have are ignored."""
        gone = set(settings.as_list("labels", labels))
        self._change(lambda row: {"labels": [label for label in row.labels if label not in gone]})

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add `metadata`, plain data as JSON has it; a value of the same name is replaced."""
        more = settings.data("metadata", metadata)
        self._change(lambda row: {"metadata": {**row.metadata, **more}})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove the metadata with the names `keys`; unknown names are ignored."""
        gone = set(settings.as_list("keys", keys))
        self._change(
            lambda row: {"metadata": {k: v for k, v in row.metadata.items() if k not in gone}}
        )

    def _change(self, fields: Callable[[RegistryRow], Mapping[str, Any]]) -> None:
        """Set fields, computed from the row as it is in the store."""
        model, version = self.model_id, self._version_number

        def decide(state: RegistryState) -> ModelChanged:
            row = state.model(model)
            now = row if version is None else row.version(version)
            return ModelChanged(model=model, version=version, fields=dict(fields(now)))

        self._take(self._registry.store.models.commit(decide))

    def _take(self, state: RegistryState) -> None:
        model = state.model(self.model_id)
        if self._version_number is not None:
            model.version(self._version_number)
        self._model = model

    def _release(self, versions: Iterable[VersionRow]) -> None:
        """Let the checkpoints of deleted versions be deleted."""
        for version in versions:
            if version.kept is None:
                continue
            store = self._registry.store
            try:
                release(store.experiment(version.experiment), version.kept)
            except StoreError as error:
                self._registry.warn(f"checkpoint {version.uuid} stays protected: {error}")


class ModelVersion(Described[VersionRow]):
    """A version of a model, as it was when it was read last. `Model.get_version()` gives it.
    Changes raise `LifecycleError`, `StoreError` and `TypeError` as those of a `Model`."""

    def __repr__(self) -> str:
        return (
            f"ModelVersion(model={self.model_name!r}, version={self.version},"
            f" checkpoint={self.row.uuid!r})"
        )

    def _repr_html_(self) -> str:
        from detslurm.sdk.display import version_html

        return version_html(self.model_name, self.row)

    @property
    def row(self) -> VersionRow:
        """Everything that was read of it last."""
        return self._model.version(self._version_number or 0)

    @property
    def model_name(self) -> str:
        """The name of its model."""
        return self._model.name

    @property
    def version(self) -> int:
        """Its number: 1 for the first of the model."""
        return self.row.number

    @property
    def model_version(self) -> int:
        """Its number, by Determined's name."""
        return self.row.number

    @property
    def checkpoint(self) -> Checkpoint:
        """Its checkpoint, read from the store; `NotFound` if it can't be found."""
        return self._registry.checkpoint(self.row.uuid)

    def get_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Return the metrics of its checkpoint; arguments as in `Checkpoint.get_metrics`."""
        return self.checkpoint.get_metrics(group)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Return the metrics of `get_metrics`; arguments as in `get_metrics`."""
        return self.get_metrics(group)

    def set_name(self, name: str) -> None:
        """Name it `name`: one line of printable text, or empty for no name."""
        wanted = settings.line("a name", name) if name else ""
        self._change(lambda row: {"name": wanted})

    def delete(self) -> None:
        """Delete it. Its checkpoint stays, and may be deleted; its number is not given again."""
        fact = VersionDeleted(model=self.model_id, version=self.version)
        self._registry.store.models.commit(lambda state: fact)
        self._release([self.row])
