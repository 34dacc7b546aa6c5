"""A task as an object: an experiment of one trial, with its exit status and its address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from detslurm.store import Address, current_address

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.trial import Trial
    from detslurm.store import ExperimentRow

_KILLED: Final = 137  # as a shell reports SIGKILL
_NO_STATUS: Final = 1


class Task:
    """A command, shell, notebook or TensorBoard, as it was when it was read last.

    `Client().task(ID)` returns an existing task, and `Client().start_task` a new task. Its
    configuration is that of the `experiment` that it is.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def __repr__(self) -> str:
        return f"Task(id={self.id}, kind={self.kind!r}, state={self.state!r})"

    def reload(self) -> Task:
        """Return this object, read again from the store and, if unfinished, from the queue."""
        self.experiment.reload()
        return self

    @property
    def id(self) -> int:
        """The task's id, which is its experiment's."""
        return self.experiment.id

    @property
    def kind(self) -> str:
        """ "command", "shell", "notebook" or "tensorboard"."""
        return self.experiment.row.task or "experiment"

    @property
    def description(self) -> str:
        """The description; without a description, the name that it was given."""
        return self.experiment.name

    @property
    def state(self) -> str:
        """QUEUED, RUNNING, PAUSED, COMPLETED, CANCELED, ERROR, or a state of stopping."""
        return task_state(self.experiment.row)

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.experiment.row.finished

    @property
    def reason(self) -> str | None:
        """Why it failed, or why it waits; None without a reason."""
        if self.experiment.message or self.is_over or self.state == "RUNNING":
            return self.experiment.message
        status = self.experiment.job_status(self.trial.id)
        return status.message if status is not None else None

    @property
    def exit_code(self) -> int | None:
        """The exit code of its program; None until it has ended, and if it never began."""
        return self.experiment.row.exit_code

    @property
    def exit_status(self) -> int:
        """The exit status for a shell: the program's, 137 if it was killed, else 1 on failure."""
        row = self.experiment.row
        if row.state == "COMPLETED":
            return self.exit_code or 0
        if row.state == "CANCELED":
            return self.exit_code or _KILLED
        return self.exit_code or _NO_STATUS

    @property
    def trial(self) -> Trial:
        """Its only trial, with the log."""
        return self.experiment.first_trial()

    @property
    def job_id(self) -> str | None:
        """The id of its newest job in Slurm; None if it has none."""
        jobs = self.experiment.view.jobs
        return jobs[-1].job_id if jobs else None

    @property
    def node(self) -> str | None:
        """The first node of its newest run; None if it never ran."""
        runs = self.trial.view.runs
        return runs[-1].host if runs else None

    @property
    def address(self) -> Address | None:
        """Where its server can be reached; None unless it runs and has published an address.

        Raises `StoreError` if the record can't be read, as that of another user.
        """
        return current_address(self.trial.directory) if self.state == "RUNNING" else None

    def kill(self) -> bool:
        """End it at once. Return False if it had already ended."""
        return self.experiment.kill()

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain data."""
        row = self.experiment.row
        return {
            **row_data(row),
            "reason": self.reason,
            "job_id": self.job_id,
            "node": self.node,
            "entrypoint": self.experiment.config["entrypoint"],
            "directory": str(self.experiment.path),
        }


def task_state(row: ExperimentRow) -> str:
    """The state of the task of a row: that of its trial while it is active."""
    if row.state == "ACTIVE":
        return "RUNNING" if row.trial_states.get("RUNNING") else "QUEUED"
    return row.state


def row_data(row: ExperimentRow) -> dict[str, Any]:
    """A task's row as plain data."""
    return {
        "id": row.id,
        "type": row.task,
        "owner": row.owner,
        "description": row.name,
        "state": task_state(row),
        "exit_code": row.exit_code,
        "resource_pool": row.pool,
        "slots": row.slots,
        "created": row.created,
        "started": row.started,
        "ended": row.ended,
    }
