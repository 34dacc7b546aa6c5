"""What an experiment keeps on disk: its garbage collection policy, and what that deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from detslurm.sdk import settings
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.base import ExperimentBase
from detslurm.store import ExperimentFacts
from detslurm.store.gc_policy import FIELD, GCPolicy

if TYPE_CHECKING:
    from detslurm.sdk.disk.garbage import GCPreview
    from detslurm.sdk.disk.usage import Usage
    from detslurm.store.collection import Removed


class DiskUse(ExperimentBase):
    """The part of `Experiment` that says what stays on disk."""

    @property
    def gc_policy(self) -> GCPolicy:
        """How many checkpoints are kept: as it was set last, else as the configuration says."""
        return GCPolicy.of(self._snapshot.directory.config(), self.view.desired.fields)

    def disk_usage(self) -> Usage:
        """Return what the experiment takes on disk now, by kind of file.

        Raises:
            StoreError: If a file of a trial can't be read.
        """
        from detslurm.sdk.disk.usage import usage_of

        return usage_of(self._snapshot.directory)

    def purge_warnings(self) -> list[str]:
        """Return what the site's purge may soon delete of the experiment's files.

        It is empty where the site profile has no `purge_days`. The files' own times count: one file
        speaks for each checkpoint.
        """
        from detslurm.sdk.disk.purge import purge_days, warnings_of

        after = purge_days()
        rows = self._snapshot.trials.values()
        latest = [row.latest_checkpoint for row in rows if row.latest_checkpoint is not None]
        return list(warnings_of(self._snapshot.directory, latest, after))

    def gc_preview(self, policy: GCPolicy | None = None) -> GCPreview:
        """Return what garbage collection would delete now; nothing is deleted.

        Args:
            policy: The policy; by default the experiment's own.

        Raises:
            LifecycleError: If the checkpoint storage is not visible from here.
            StoreError: If a file of a trial can't be read.
        """
        from detslurm.sdk.disk.garbage import collector_of, preview

        return preview(collector_of(self._snapshot.directory), policy)

    def set_gc_policy(
        self,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
    ) -> Removed:
        """Change how many checkpoints are kept, and delete at once what the new policy lets go.

        What a model version, another experiment or a download needs stays, and so does what a
        trial that is not over may go on from.

        Args:
            save_experiment_best: Keep as many of the experiment's best; by default as before.
            save_trial_best: Keep as many of each trial's best; by default as before.
            save_trial_latest: Keep as many of each trial's latest; by default as before.

        Returns:
            What was deleted.

        Raises:
            LifecycleError: If a number is negative, the experiment belongs to somebody else, or its
                checkpoint storage is not visible from here.
            TypeError: If one is not a whole number.
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

        def changed(facts: ExperimentFacts) -> dict[str, int]:
            policy = GCPolicy.of(config, facts.desired.fields)
            changed: dict[str, int] = msgspec.to_builtins(
                msgspec.structs.replace(policy, **numbers)
            )
            return changed

        self._change(FIELD, changed)
        return self.collect_garbage()

    def delete_tensorboard_files(self) -> None:
        """Delete the TensorBoard files of the experiment's trials; metrics and checkpoints stay.

        Raises:
            LifecycleError: If the experiment is not finished or belongs to somebody else, or its
                checkpoint storage is not visible from here.
        """
        from detslurm.sdk.disk.deletion import delete_tensorboard_files

        if not self.view.finished:
            raise LifecycleError(f"experiment {self.id} is {self.state}: it may be writing them")
        self._refuse_others()
        delete_tensorboard_files(self._snapshot)
        self._intent("delete_tensorboard_files")

    def collect_garbage(self) -> Removed:
        """Delete the checkpoints that the policy does not keep, as the experiment's jobs do.

        Returns:
            What was deleted.

        Raises:
            LifecycleError: If the experiment belongs to somebody else, or its checkpoint storage is
                not visible from here.
        """
        from detslurm.sdk.disk.garbage import collector_of

        self._refuse_others()
        return collector_of(self._snapshot.directory).collect()
