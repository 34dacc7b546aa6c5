"""The part of `Client` that knows models."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from detslurm.sdk import settings
from detslurm.sdk.deprecation import deprecated
from detslurm.sdk.enums import ModelSortBy, OrderBy
from detslurm.store import Store

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.models.model import Model
    from detslurm.store.models import ModelRow, RegistryState


class Registry:
    """Models by name and id: names for checkpoints that nothing deletes."""

    store: Store
    warn: Callable[[str], None]

    @abstractmethod
    def checkpoint(self, uuid: str) -> Checkpoint:
        """Return a checkpoint by its id."""

    def _model(self, row: ModelRow) -> Model:
        from detslurm.sdk.models.model import Model

        return Model(self, row)

    def registry_state(self) -> RegistryState:
        """Return the registry as it is now; `warn` gets what of it can't be read."""
        state = self.store.models.state()
        for problem in state.problems:
            self.warn(f"left out: {problem}")
        return state

    def create_model(
        self,
        name: str,
        description: str = "",
        metadata: Mapping[str, Any] | None = None,
        labels: Iterable[str] = (),
        workspace_name: str | None = None,
    ) -> Model:
        """Make a model: a name for checkpoints, which become its versions.

        The `name` is one line of printable text without "/", and not a number. `description`,
        `metadata` (plain data), `labels` (lines of text) and `workspace_name` are empty by default.
        A wrong value is a `LifecycleError`, a name that is taken a `StoreError`.

        Example:
            from detslurm.sdk import Client

            client = Client("store")
            model = client.create_model("resnet", labels=["vision"], metadata={"layers": 18})
            assert client.get_model("resnet").model_id == model.model_id
        """
        from detslurm.store.models import ModelCreated

        fact = ModelCreated(
            name=settings.model_name(name),
            description=settings.text("a description", description),
            metadata=settings.data("metadata", metadata or {}),
            labels=tuple(settings.labels(labels)),
            workspace=workspace_name and settings.folder("a workspace", workspace_name),
        )
        Store.open(self.store.path)
        return self._model(self.store.models.commit(lambda state: fact).model(fact.name))

    def get_model(self, identifier: str | int) -> Model:
        """Return a model by its name or id (`identifier`); `NotFound` if there is none."""
        number = isinstance(identifier, str) and identifier.isascii() and identifier.isdigit()
        which = int(identifier) if number else identifier
        return self._model(self.registry_state().model(which))

    def get_model_by_id(self, model_id: int) -> Model:
        """Return the model with the id `model_id`; raises `NotFound` if there is none."""
        return self.get_model(model_id)

    def list_models(
        self,
        sort_by: ModelSortBy | str = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASC,
        name: str | None = None,
        description: str | None = None,
        *,
        labels: Iterable[str] = (),
        workspace: str | None = None,
        user: str | None = None,
        archived: bool = False,
    ) -> list[Model]:
        """Return models as they are now, in the order `sort_by` (the name by default) and
        `order_by` (ascending by default); a `ValueError` if they can't be sorted by that.

        By default these are all but the `archived` models. Else they are those whose `name` and
        `description` contain these texts, in any case, and which have all these `labels`, are in
        this `workspace` and were made by this `user`.
        """
        from detslurm.sdk.experiments.ordering import ordered

        wanted = set(labels)
        found = [
            row
            for row in self.registry_state().models.values()
            if (archived or not row.archived)
            and _contains(row.name, name)
            and _contains(row.description, description)
            and wanted <= set(row.labels)
            and workspace in (None, row.workspace)
            and user in (None, row.user)
        ]
        rows = ordered(found, _SORT_KEYS[ModelSortBy(sort_by)], order_by)
        return [self._model(row) for row in rows]

    def get_models(
        self,
        sort_by: ModelSortBy | str = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASC,
        name: str | None = None,
        description: str | None = None,
    ) -> list[Model]:
        """Return the models of `list_models` by its older name; arguments as in `list_models`."""
        deprecated("get_models", "list_models")
        return self.list_models(sort_by, order_by, name, description)

    def get_model_labels(self) -> list[str]:
        """Return the labels that models have, those of most models first."""
        rows = self.registry_state().models.values()
        counts = Counter(label for row in rows for label in row.labels)
        return sorted(counts, key=lambda label: (-counts[label], label))


def _contains(text: str, part: str | None) -> bool:
    return part is None or part.casefold() in text.casefold()


_SORT_KEYS: dict[ModelSortBy, Callable[[ModelRow], Any]] = {
    ModelSortBy.ID: lambda row: row.id,
    ModelSortBy.NAME: lambda row: row.name,
    ModelSortBy.DESCRIPTION: lambda row: row.description,
    ModelSortBy.CREATION_TIME: lambda row: (row.created or 0.0, row.id),
    ModelSortBy.LAST_UPDATED_TIME: lambda row: (row.updated or 0.0, row.id),
    ModelSortBy.NUM_VERSIONS: lambda row: (len(row.versions), row.id),
    ModelSortBy.WORKSPACE: lambda row: (row.workspace or "", row.name),
}
