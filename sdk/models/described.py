"""What models and their versions have in common: notes, labels and metadata."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Protocol

from detslurm.sdk import settings
from detslurm.sdk.trials.metrics import moment


class DescribedRow(Protocol):
    """What the registry has of a model or a version."""

    @property
    def name(self) -> str: ...
    @property
    def notes(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def user(self) -> str: ...
    @property
    def created(self) -> float | None: ...
    @property
    def updated(self) -> float | None: ...


class Described(ABC):
    """Something of the registry that people describe."""

    @property
    @abstractmethod
    def row(self) -> DescribedRow:
        """Everything about it, as it was when it was read last."""

    @abstractmethod
    def _change(self, fields: Callable[[Any], Mapping[str, Any]]) -> None:
        """Set fields to what follows from the row as it is in the store."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.row.name

    @property
    def notes(self) -> str:
        """What its users should know."""
        return self.row.notes

    @property
    def labels(self) -> list[str]:
        """Its labels, in order."""
        return list(self.row.labels)

    @property
    def metadata(self) -> dict[str, Any]:
        """What its users say of it in data."""
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

    def set_notes(self, notes: str) -> None:
        """Replace its notes.

        Args:
            notes: Printable text.

        Raises:
            LifecycleError: If it is not printable.
        """
        self._change(lambda row: {"notes": settings.text("notes", notes)})

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels.

        Args:
            labels: Lines of printable text.

        Raises:
            LifecycleError: If one is not such a line.
        """
        wanted = settings.labels(labels)
        self._change(lambda row: {"labels": wanted})

    def add_labels(self, labels: Iterable[str]) -> None:
        """Add labels.

        Args:
            labels: Lines of printable text.

        Raises:
            LifecycleError: If one is not such a line.
        """
        more = settings.labels(labels)
        self._change(lambda row: {"labels": sorted({*row.labels, *more})})

    def remove_labels(self, labels: Iterable[str]) -> None:
        """Remove labels; those that it does not have are ignored.

        Args:
            labels: The labels.

        Raises:
            TypeError: If they are a text.
        """
        gone = set(settings.as_list("labels", labels))
        self._change(lambda row: {"labels": [one for one in row.labels if one not in gone]})

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Give it more metadata; what has the same name is replaced.

        Args:
            metadata: Plain data as JSON has it, by name.

        Raises:
            TypeError: If it is not plain data.
        """
        more = settings.data("metadata", metadata)
        self._change(lambda row: {"metadata": {**row.metadata, **more}})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove metadata.

        Args:
            keys: The names; those that it does not have are ignored.

        Raises:
            TypeError: If they are a text.
        """
        gone = set(settings.as_list("keys", keys))
        self._change(
            lambda row: {"metadata": {k: v for k, v in row.metadata.items() if k not in gone}}
        )
