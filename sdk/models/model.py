"""A model of the registry as an object: a name for checkpoints, with numbered versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from detslurm._base.process import Identity
from detslurm.sdk import settings
from detslurm.sdk.deprecation import deprecated
from detslurm.sdk.enums import OrderBy
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.models.version import Described, ModelVersion
from detslurm.store import ExperimentDir, NotFound
from detslurm.store import checkpoint_facts as facts
from detslurm.store.errors import Refused
from detslurm.store.models import ModelDeleted, ModelRow, RegistryState, VersionRegistered

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint


class Model(Described[ModelRow]):
    """A name for checkpoints, as it was when it was read last. `Client().get_model(NAME)` gives it.

    Only the user who made it may change it: `StoreError` for others. Changes raise `LifecycleError`
    for text that is not printable, and `TypeError` for a value of another type.
    """

    def __repr__(self) -> str:
        count = len(self.row.versions)
        return f"Model(name={self.name!r}, model_id={self.model_id}, versions={count})"

    def _repr_html_(self) -> str:
        from detslurm.sdk.display import model_html

        return model_html(self.row)

    @property
    def row(self) -> ModelRow:
        """Everything that was read of it and its versions last."""
        return self._model

    @property
    def description(self) -> str:
        """Its description, in a line or more."""
        return self.row.description

    @property
    def workspace(self) -> str | None:
        """The name of its workspace; None if it has none."""
        return self.row.workspace

    @property
    def archived(self) -> bool:
        """Whether lists leave it out."""
        return self.row.archived

    # -- its versions ------------------------------------------------------------------------------

    def get_version(self, version: int = -1) -> ModelVersion | None:
        """Return the `version` of this number as it is now, else `NotFound`; by default (-1) the
        newest, None if there is none."""
        self.reload()
        if version == -1:
            newest = max(self.row.versions, default=None)
            return None if newest is None else self._version(newest)
        return self._version(settings.whole("a version", version))

    def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """Return all versions as they are now, by default the newest first (`order_by`)."""
        self.reload()
        newest_first = order_by is OrderBy.DESC
        return [self._version(n) for n in sorted(self.row.versions, reverse=newest_first)]

    def get_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """Return `list_versions` by an older name; arguments as in `list_versions`."""
        deprecated("Model.get_versions", "list_versions")
        return self.list_versions(order_by)

    def register_version(
        self,
        checkpoint_uuid: str | Checkpoint,
        *,
        name: str = "",
        notes: str = "",
        labels: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> ModelVersion:
        """Make a checkpoint (`checkpoint_uuid`: itself, its id, or the first 4 or more characters
        of that) the next version, and return it. Nothing deletes the files of a version.

        The version's `name` (one line), `notes`, `labels` and `metadata` (plain data) are empty by
        default. It is a `LifecycleError` if there is no such checkpoint, or it is another user's;
        `StoreError` if it was deleted; `NotFound` if the model was.

        Example:
            import detslurm as det
            from detslurm.sdk import Client

            with det.core.init() as core:
                with core.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
                    (path / "weights").write_text("1.5")
            client = Client()
            client.create_model("mnist").register_version(uuid, notes="the first that works")

            version = client.get_model("mnist").get_version()
            assert version.checkpoint.uuid == uuid
        """
        uuid = checkpoint_uuid if isinstance(checkpoint_uuid, str) else checkpoint_uuid.uuid
        checkpoint = self._registry.checkpoint(uuid)
        directory = self._registry.store.experiment(checkpoint.experiment_id)
        _refuse(checkpoint, directory)
        about: dict[str, Any] = {
            "name": settings.line("a name", name) if name else "",
            "notes": settings.text("notes", notes),
            "labels": tuple(settings.labels(labels)),
            "metadata": settings.data("metadata", metadata or {}),
        }
        # Kept for this process first. Once the registry names that fact, it protects the
        # checkpoint for good; where the process dies before, the protection ends with it.
        by, holder = f"model {self.name}", Identity.own()
        kept = facts.keep(directory, [checkpoint.uuid], by=by, holder=holder)
        fact = VersionRegistered(
            model=self.model_id,
            uuid=checkpoint.uuid,
            experiment=checkpoint.experiment_id,
            trial=checkpoint.trial_id,
            steps=checkpoint.steps_completed,
            kept=kept,
            **about,
        )
        try:
            self._take(self._registry.store.models.commit(lambda state: fact))
        except (NotFound, Refused):  # after other errors the fact may be there
            facts.release(directory, kept)
            raise
        return self._version(self.row.last_version)

    def _version(self, number: int) -> ModelVersion:
        self.row.version(number)
        return ModelVersion(self._registry, self.row, number)

    # -- changes of it -----------------------------------------------------------------------------

    def set_name(self, name: str) -> None:
        """Rename it to `name`, one line without "/", no number; `StoreError` if it is taken."""
        self._change(lambda row: {"name": settings.model_name(name)})

    def set_description(self, description: str) -> None:
        """Replace the description by the text `description`."""
        self._change(lambda row: {"description": settings.text("a description", description)})

    def move_to_workspace(self, workspace_name: str) -> None:
        """Put it into the workspace `workspace_name`, one line without a slash."""
        name = settings.folder("a workspace", workspace_name)
        self._change(lambda row: {"workspace": name})

    def archive(self) -> None:
        """Leave it out of lists."""
        self._change(lambda row: {"archived": True})

    def unarchive(self) -> None:
        """Show it in lists again."""
        self._change(lambda row: {"archived": False})

    def delete(self) -> None:
        """Delete it with all its versions. Their checkpoints stay, and may be deleted then."""
        deleted: list[ModelRow] = []

        def decide(state: RegistryState) -> ModelDeleted:
            deleted[:] = [state.model(self.model_id)]
            return ModelDeleted(model=self.model_id)

        self._registry.store.models.commit(decide)
        self._release(deleted[0].versions.values())


def _refuse(checkpoint: Checkpoint, directory: ExperimentDir) -> None:
    """Raise `LifecycleError` for a checkpoint that can't be promised to stay."""
    if owner := directory.foreign_owner():
        raise LifecycleError(
            f"checkpoint {checkpoint.uuid} belongs to {owner}, whose jobs may delete it: "
            f"{owner} alone can register it"
        )
    if checkpoint.path is not None and not checkpoint.path.is_dir():
        raise LifecycleError(f"the files of checkpoint {checkpoint.uuid} are gone")
