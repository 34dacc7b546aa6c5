"""Waiting until the server of a task can be reached, and the way there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.polling import ExperimentPoller
from detslurm.store import Address as Address  # commands use it, too

if TYPE_CHECKING:
    from detslurm.sdk.tasks.task import Task

_POLL_SECONDS: Final = 1.0


def address_of(task: Task) -> Address:
    """Return the address of a task's server, as the task was read last. Raises `LifecycleError` if
    the task has ended, or its server does not listen yet."""
    why = f": {task.reason}" if task.reason else ""
    if task.is_over:
        raise LifecycleError(
            f"{task.kind} {task.id} has ended ({task.state}{why}). Its log: `detslurm {task.kind}"
            f" logs {task.id}`. `detslurm {task.kind} start` starts another one"
        )
    if task.state == "PAUSED":
        raise LifecycleError(
            f"{task.kind} {task.id} is paused. `detslurm experiment activate {task.id}` queues it"
        )
    if (address := task.address) is None:
        raise LifecycleError(
            f"{task.kind} {task.id} can't be reached yet ({task.state}{why})."
            f" `detslurm {task.kind} open {task.id}` waits for it"
        )
    return address


def wait_for_server(
    task: Task, report: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the server of a task can be reached, or the task has ended or is paused. `report`
    gets the state with its reason after each look."""
    poller = ExperimentPoller(task.experiment)
    while not task.is_over and task.state != "PAUSED" and task.address is None:
        message = poller.message()
        report(f"{task.kind} {task.id} is {task.state}{f': {message}' if message else ''}")
        sleep(max(_POLL_SECONDS, poller.rest))
        poller.poll()


def step_beside(address: Address) -> list[str]:
    """Return the `srun` that starts a program beside a server in a job, on its node."""
    step = ["srun", "--quiet", f"--jobid={address.job}", f"--nodelist={address.host}"]
    return [*step, "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none"]
