"""A checkpoint as an object.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.contract import task_and_allocation
from detslurm.sdk import settings
from detslurm.sdk.enums import CheckpointState, DownloadMode
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.trials.metrics import TrialMetrics
from detslurm.store import (
    CheckpointRow,
    CheckpointView,
    ExperimentDir,
    SavedCheckpoints,
    StoreError,
    fold_facts,
    fold_trial,
    row_of,
    trial_metrics,
)

if TYPE_CHECKING:
    from detslurm.storage import Storage
    from detslurm.store import TrialView


class Checkpoint:
    """One checkpoint, with its `uuid` and the ids of its experiment and of the trial that saved it.
    `Client().checkpoint(UUID)` returns it, `Experiment.checkpoints()` all.

    Only the owner of its experiment may change it: `LifecycleError` for others, and for a deleted
    checkpoint. Methods raise `StoreError` if its records can't be read.

    Attributes:
        steps_completed: How many batches were trained.
        report_time: When it was saved, in seconds since 1970; None if that was not recorded.
        size: The bytes of all its files.
        state: "COMPLETED", "PARTIALLY_DELETED" or "DELETED"; "UNKNOWN" after a `verify()` that
            could not see its storage.
        problem: The fault that `verify()` or a list found in its files; None without a fault.
        validation_metrics: The numeric validation metrics of exactly its weights, by name.
        searcher_metric: The searcher's metric among them; None if it was not validated.
        objectives: The metrics and constraints of its search; None if one metric decides.
    """

    def __init__(self, directory: ExperimentDir, saved: SavedCheckpoints, row: CheckpointRow):
        self._directory = directory
        self._saved = saved
        self._take(row)

    def _take(self, row: CheckpointRow) -> None:
        self._row = row
        self.uuid = row.uuid
        self.experiment_id = self._saved.experiment
        self.trial_id = row.trial
        self.steps_completed = row.steps
        self.report_time = row.time
        self.size = row.size
        self.state: str = CheckpointState(row.state)
        self.problem = row.problem
        self.kind = row.kind
        self.validation_metrics: dict[str, float] = dict(row.metrics)
        name = self._saved.metric
        self.searcher_metric = None if name is None else self.validation_metrics.get(name)
        self.smaller_is_better = self._saved.smaller_is_better
        self.objectives = self._saved.objectives

    def __repr__(self) -> str:
        return (
            f"Checkpoint(uuid={self.uuid!r}, trial={self.trial_id}, steps={self.steps_completed},"
            f" state={str(self.state)!r})"
        )

    def _repr_html_(self) -> str:
        from detslurm.sdk.display import checkpoint_html

        facts = {"State": self.state, "Trial": self.trial_id, "Batches": self.steps_completed,
                 "Path": self.location, "Wrong": self.problem}  # fmt: skip
        return checkpoint_html(self.uuid, facts, self.validation_metrics)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The directory with its files; None if they are in a bucket."""
        if self._row.storage is not None:
            return self._storage.direct(self.uuid)
        return Path(self._saved.base, self.uuid) if self._saved.base is not None else None

    @property
    def location(self) -> str:
        """The directory of its files, or their address in a bucket."""
        where = self._saved.where if self._row.storage is None else self._storage.where
        return str(self.path or f"{where}/{self.uuid}")

    @cached_property
    def _trial(self) -> TrialView:
        facts = fold_facts(self._directory)
        return fold_trial(self._directory.trial(self.trial_id), facts.context(self.trial_id))

    @cached_property
    def view(self) -> CheckpointView:
        """Everything that is recorded of it, read on first use."""
        found = [one for one in self._trial.checkpoints if one.uuid == self.uuid]
        if not found:
            raise LifecycleError(f"checkpoint {self.uuid} is no longer recorded")
        return found[0]

    @property
    def resources(self) -> dict[str, int]:
        """Its files with their sizes in bytes; directories end in "/"."""
        return dict(self.view.resources)

    @property
    def metadata(self) -> dict[str, Any]:
        """Its metadata, with later changes."""
        return dict(self.view.metadata)

    @property
    def hparams(self) -> dict[str, Any]:
        """The hyperparameters of its trial."""
        return dict(self._trial.hparams or {})

    @cached_property
    def _ids(self) -> tuple[str | None, str | None]:
        start = self._directory.trial(self.trial_id).start(self._row.run)
        if start is None:
            return None, None
        return task_and_allocation(self.experiment_id, self.trial_id, start.run, start.request_id)

    @property
    def task_id(self) -> str | None:
        """The id of its trial's task, as in `ClusterInfo.task_id`; None without a recorded run."""
        return self._ids[0]

    @property
    def allocation_id(self) -> str | None:
        """The id of the run that saved it (`ClusterInfo.allocation_id`); None if unrecorded."""
        return self._ids[1]

    @property
    def experiment_config(self) -> dict[str, Any]:
        """The resolved configuration of its experiment, with secrets masked."""
        from detslurm.config import ExperimentConfig

        return ExperimentConfig.from_dict(self._directory.config()).masked()

    def kept_by(self) -> list[str]:
        """Return what needs it, such as "model resnet version 3", so that it can't be deleted."""
        kept = fold_facts(self._directory).checkpoints.kept.values()
        return [fact.kept_by for fact in kept if self.uuid in fact.uuids]

    def used_by(self, model: str | None = None, version: int | None = None) -> list[int]:
        """Return the trials that have reported that they use it (see `core.experimental`), by
        default all; else those that use it as this `version` of this `model`."""
        used = fold_facts(self._directory).checkpoints.used
        found = (u for u in used if u.uuid == self.uuid and model in (None, u.model))
        return list(dict.fromkeys(u.trial for u in found if version in (None, u.version)))

    def get_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Return its trial's metrics at exactly its step, then all metrics of the trials that use
        it (`used_by()`), such as a batch inference; of one `group`, or by default of all."""
        rows = trial_metrics(self._directory.trial(self.trial_id), group)
        exactly = (row for row in rows if row.steps == self.steps_completed)
        own = (TrialMetrics.of_row(self.trial_id, row) for row in exactly)
        return chain(own, self._metrics_of(self.used_by(), group))

    def _metrics_of(self, users: Iterable[int], group: str | None) -> Iterator[TrialMetrics]:
        """Yield the metrics of other trials, without those that were deleted or are closed."""
        for number in users:
            try:
                trial = self._directory.store.find_trial(number)
                rows = trial_metrics(trial, group) if number != self.trial_id else []
            except StoreError:
                continue
            yield from (TrialMetrics.of_row(number, row) for row in rows)

    def reload(self) -> Checkpoint:
        """Return this object, read again from the store."""
        self.__dict__.pop("view", None)
        self.__dict__.pop("_trial", None)
        self._take(row_of(self.view))
        return self

    # -- copies of it ------------------------------------------------------------------------------

    def download(
        self,
        path: Path | str | None = None,
        mode: DownloadMode = DownloadMode.AUTO,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Copy it to a directory, and return that. The code of its Trial class goes along if it may
        be read: in a shared store the code is its owner's alone.

        The directory appears when everything is in it and was checked. The next download continues
        an interrupted download. It is a `LifecycleError` if it was deleted, its files are gone, or
        the directory holds something else.

        Args:
            path: The directory, which must not exist or be empty; by default `checkpoints/<uuid>`.
            mode: No effect; `DownloadMode.AUTO` by default.
            progress: Gets the copied bytes and all bytes, again and again; by default unused.
        """
        from detslurm.sdk.checkpoints.download import download

        target = Path(path) if path is not None else Path("checkpoints") / self.uuid
        return download(self._directory, self.reload().view, target, progress)

    def load(self, loader: Callable[[Path], Any] | None = None) -> Any:
        """Return the object that `loader` makes of its directory (for a bucket of a copy). By
        default `detslurm.pytorch.load_trial_from_checkpoint_path` loads the trial. It is a
        `LifecycleError` if its files are gone, or it is not a `PyTorchTrial`'s and there is no
        `loader`."""
        from detslurm.sdk.checkpoints.loading import load, load_trial

        return load(self.path, self.download, loader or load_trial)

    def write_metadata_file(self, path: Path | str) -> None:
        """Write its metadata as JSON to the file `path`, which is replaced where it exists."""
        from detslurm.sdk.checkpoints.download import write_metadata

        write_metadata(Path(path), self.metadata)

    # -- changes of it -----------------------------------------------------------------------------

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set values of its `metadata`, which are plain data as in JSON (else `ValueError`)."""
        from detslurm.sdk.checkpoints.changes import edit_metadata

        edit_metadata(self, metadata, ())

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove metadata by a list of `keys` (a text is a `TypeError`), ignoring unknown ones."""
        from detslurm.sdk.checkpoints.changes import edit_metadata

        edit_metadata(self, {}, settings.as_list("keys", keys))

    def delete(self) -> None:
        """Delete it with all its files. Raises `LifecycleError` if it is needed."""
        from detslurm.sdk.checkpoints.changes import delete

        delete(self._directory, [self])

    def remove_files(self, globs: Iterable[str]) -> list[str]:
        """Delete the files that match `globs` and return their names: it is PARTIALLY_DELETED then.
        It is a `LifecycleError` if it is needed, a `TypeError` if `globs` is not a list. In these
        relative patterns `**` spans directories. Without any its files are recorded again."""
        from detslurm.sdk.checkpoints.changes import remove_files

        return remove_files(self._directory, self, settings.as_list("globs", globs))

    def verify(self, *, deep: bool = False) -> str | None:
        """Return the fault in its files, by the record of its save, in a sentence; None without a
        fault. That it was deleted, or its storage can't be seen from here, is a sentence, too.

        The result is recorded and shown in lists; where that can't be, there is a warning. With
        `deep` (not by default) it not only compares names and sizes, but reads all files that have
        checksums inside: those of `torch.save` and NumPy's `.npz` do.
        """
        from detslurm.sdk.checkpoints.verification import verify

        return verify(self._directory, [self], deep=deep)[self.uuid]

    @cached_property
    def _storage(self) -> Storage:
        from detslurm.sdk.checkpoints.catalog import storages_of

        return storages_of(self._directory).of(self._row.storage)
