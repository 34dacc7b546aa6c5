"""A trial as an object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.job_status import JobStatus
from detslurm.store import (
    CheckpointView,
    Columns,
    MetricRow,
    ProfileRow,
    TrialDir,
    TrialRow,
    TrialView,
    metric_columns,
    trial_metrics,
    trial_profile,
)

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment


class Trial:
    """One trial, as it was when its experiment was read last: `Client().trial(ID)` gives it.

    Attributes:
        experiment: The experiment that it belongs to.
        id: The trial's id.
    """

    def __init__(self, experiment: Experiment, trial_id: int) -> None:
        self.experiment = experiment
        self.id = trial_id

    @property
    def directory(self) -> TrialDir:
        """The trial's directory in the store."""
        return self.experiment._snapshot.directory.trial(self.id)

    @property
    def row(self) -> TrialRow:
        """The trial in short, as it was when its experiment was read last."""
        snapshot = self.experiment._snapshot
        known = snapshot.trials.get(self.id)
        # One that waits for its first worker is no row of its experiment yet.
        return snapshot.read_trial(self.id).row() if known is None else known

    @cached_property
    def view(self) -> TrialView:
        """Everything about the trial, read when it is first asked for."""
        return self.experiment._snapshot.read_trial(self.id)

    @property
    def state(self) -> str:
        """The trial's state, such as "RUNNING" or "COMPLETED"."""
        return self.row.state

    @property
    def job_status(self) -> JobStatus | None:
        """What is known of the trial's job; None once the trial is finished."""
        return self.experiment.job_status(self.id)

    def reload(self) -> Trial:
        """Read it again from the store, and query the queue.

        Returns:
            This object.
        """
        self.experiment.reload()
        self.__dict__.pop("view", None)
        return self

    def kill(self) -> bool:
        """End the trial now.

        Returns:
            False if it had already ended.
        """
        return self.experiment.kill_trial(self.id)

    def checkpoints(self) -> list[CheckpointView]:
        """Return the trial's committed checkpoints, oldest first; those that were deleted are left
        out.

        Those whose files somebody has removed from a disk have the state "DELETED".
        """
        known = [c for c in self.view.checkpoints if c.state == "COMPLETED"]
        return self.experiment.as_stored(known)

    def download(self, uuid: str, target: Path | str) -> Path:
        """Copy one of the trial's checkpoints to a directory, with the code that trained it.

        Args:
            uuid: The checkpoint's storage id.
            target: The directory, which must be empty or not exist.

        Returns:
            The directory.

        Raises:
            LifecycleError: If the trial has no such checkpoint, its files are gone, or `target`
                holds something.
        """
        from detslurm.sdk.checkpoints import download

        if uuid not in [checkpoint.uuid for checkpoint in self.checkpoints()]:
            raise LifecycleError(f"trial {self.id} has no checkpoint {uuid}")
        return download(self.experiment._snapshot.directory, uuid, Path(target))

    def metrics(self, group: str, names: Sequence[str] | None = None) -> Columns:
        """The numeric metrics that it reported, as columns for a plot or a data frame.

        The columns follow one clean curve: what a later run repeated after a restart is there
        once. A trial that has reported nothing has no steps and no columns.

        Args:
            group: The group of metrics, such as "training" or "validation".
            names: Only these metrics; all by default. Nested metrics have dotted names: "top.5".

        Returns:
            `steps`, in ascending order, and `metrics`: for each name a sequence of floats as long
            as `steps`, NaN where a step has no such number.

        Raises:
            StoreFault: If a file of the trial can't be read.
        """
        return metric_columns(self.directory, group, names)

    def iter_metrics(self, group: str | None = None) -> Iterator[MetricRow]:
        """Everything that it reported, also what is not a number, by step on one clean curve.

        Args:
            group: Only this group of metrics, such as "training"; all groups by default.

        Returns:
            A row for each group and step.

        Raises:
            StoreFault: If a file of the trial can't be read.
        """
        yield from trial_metrics(self.directory, group)

    def profile(self, group: str | None = None) -> list[ProfileRow]:
        """The figures that the profiler recorded on the trial's nodes, in the order of time.

        Args:
            group: Only "cpu", "memory", "disk", "network" or "gpu"; all by default.

        Returns:
            A row for each report, node and group. Empty if the profiler was never on.

        Raises:
            StoreFault: If a file of the trial can't be read.
        """
        return trial_profile(self.directory, group)
