"""The disk use of an experiment: its garbage collection policy, and the effect of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.sdk import settings
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.base import ExperimentBase
from detslurm.store import ExperimentFacts
from detslurm.store.gc_policy import FIELD, GCPolicy

if TYPE_CHECKING:
    from detslurm.sdk.disk.gc import GCPreview
    from detslurm.sdk.disk.usage import Usage
    from detslurm.store.gc import Removed


class DiskUse(ExperimentBase):
    """The part of `Experiment` for its files on disk. Methods that need the checkpoint storage
    raise `LifecycleError` if it is not visible from here; those that delete, if the experiment
    belongs to another user."""

    @property
    def gc_policy(self) -> GCPolicy:
        """How many checkpoints are kept: as it was set last, else as in the configuration."""
        return GCPolicy.of(self._snapshot.directory.config(), self.view.desired.fields)

    def disk_usage(self) -> Usage:
        """Return the experiment's bytes on disk, by kind of file."""
        from detslurm.sdk.disk.usage import usage_of

        return usage_of(self._snapshot.directory)

    def purge_warnings(self) -> list[str]:
        """Return warnings of files that the site's purge may soon delete; none where the site
        profile has no `purge_days`."""
        from detslurm.sdk.disk.purge import purge_days, warnings_of

        rows = self._snapshot.trials.values()
        latest = [row.latest_checkpoint for row in rows if row.latest_checkpoint is not None]
        return list(warnings_of(self._snapshot.directory, latest, purge_days()))

    def gc_preview(self, policy: GCPolicy | None = None) -> GCPreview:
        """Return the effect that a garbage collection by a `policy`, by default the experiment's
        own, would have now."""
        from detslurm.sdk.disk.gc import collector_of, preview

        return preview(collector_of(self._snapshot.directory), policy)

    def set_gc_policy(
        self,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
    ) -> Removed:
        """Change how many checkpoints are kept, delete the others at once, and return the deleted
        ones.

        The numbers `save_experiment_best`, `save_trial_best` and `save_trial_latest` are by default
        as before. Checkpoints stay that a model version, another experiment or a download needs, or
        from which an unfinished trial may go on. It is a `LifecycleError` if a number is negative,
        a `TypeError` if it is not whole.
        """
        given = {
            "save_experiment_best": save_experiment_best,
            "save_trial_best": save_trial_best,
            "save_trial_latest": save_trial_latest,
        }
        numbers = {name: value for name, value in given.items() if value is not None}
        for name, value in numbers.items():
            if settings.whole(name, value) < 0:
                raise LifecycleError(f"{name} is 0 or more, not {value}")
        config = self._snapshot.directory.config()

        def changed(facts: ExperimentFacts) -> dict[str, Any]:
            policy = GCPolicy.of(config, facts.desired.fields)
            return {**msgspec.structs.asdict(policy), **numbers}

        self._change(FIELD, changed)
        return self.collect_garbage()

    def delete_tensorboard_files(self) -> None:
        """Delete the TensorBoard files of the experiment's trials; metrics and checkpoints stay. It
        is a `LifecycleError` if the experiment is not finished."""
        from detslurm.sdk.disk.deletion import delete_tensorboard_files

        if not self.view.finished:
            raise LifecycleError(f"experiment {self.id} is {self.state}: it may be writing them")
        self._refuse_others()
        delete_tensorboard_files(self._snapshot)
        self._intent("delete_tensorboard_files")

    def collect_garbage(self) -> Removed:
        """Delete and return the checkpoints that the policy does not keep, as the jobs do."""
        from detslurm.sdk.disk.gc import collector_of

        self._refuse_others()
        return collector_of(self._snapshot.directory).collect()
