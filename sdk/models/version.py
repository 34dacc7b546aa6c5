"""A version of a model as an object: a checkpoint with a number that people can rely on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from detslurm.sdk import settings
from detslurm.sdk.models.described import Described
from detslurm.store.models import VersionDeleted, VersionRow

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.trials.metrics import TrialMetrics


class ModelVersion(Described[VersionRow]):
    """A version of a model, as it was when it was read last: `Model.get_version()` gives it.

    Only the user who made the model may change it: `StoreError` for others. Changes raise
    `LifecycleError` for text that is not printable, and `TypeError` for a value of another type.
    """

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
        """Return the metrics that its trial reported at exactly the checkpoint's step, in the
        `group`, such as "validation"; in all groups by default."""
        return self.checkpoint.get_metrics(group)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Return the metrics of `get_metrics`; arguments as in `get_metrics`."""
        return self.get_metrics(group)

    def set_name(self, name: str) -> None:
        """Name it `name`: one line of printable text, or empty for no name."""
        wanted = settings.line("a name", name) if name else ""
        self._change(lambda row: {"name": wanted})

    def delete(self) -> None:
        """Delete the version; its checkpoint stays, and may be deleted then. Its number is not
        given again."""
        fact = VersionDeleted(model=self.model_id, version=self.version)
        self._registry.store.models.commit(lambda state: fact)
        self._release([self.row])
