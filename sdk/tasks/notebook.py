"""Notebooks: the program of a notebook's job, and waiting until it can be reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.polling import ExperimentPoller
from detslurm.store.address import Address as Address  # commands use it, too

if TYPE_CHECKING:
    from detslurm.sdk.tasks.document import TaskDocument
    from detslurm.sdk.tasks.task import Task

_POLL_SECONDS: Final = 1.0


def notebook_entrypoint(
    document: TaskDocument, port: int | None = None, *, in_portal: bool = False
) -> list[str]:
    """Return the program of a notebook's job.

    Args:
        document: The configuration.
        port: The port of the node's loopback address to listen on (0: any); None, the default,
            for a Unix socket.
        in_portal: Whether Open OnDemand shows the notebook; off by default. It then listens on a
            port of all addresses of the node.

    Example:
        document = read_document("notebook", overrides=["idle_timeout=1h"])
        task = Client().start_task(document, notebook_entrypoint(document))
    """
    # With -P a module in the user's directory takes the place of no other.
    words = ["python3", "-P", "-m", "detslurm.exec.tasks.notebook_server"]
    options = {
        "--idle-timeout": document.idle_timeout,
        "--idle-type": document.notebook_idle_type,
        "--port": port,
    }
    given = ((name, value) for name, value in options.items() if value is not None)
    words += [word for name, value in given for word in (name, str(value))]
    return [*words, "--portal"] if in_portal else words


def wait_for_address(
    task: Task, report: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Address:
    """Wait until the server of a task can be reached, and return its address.

    Args:
        task: A notebook, TensorBoard or shell.
        report: Gets the state with its reason, after each look.
        sleep: Waits for a number of seconds.

    Raises:
        LifecycleError: If the task has ended.
    """
    poller = ExperimentPoller(task.experiment)
    while (address := task.address) is None:
        message = poller.message()
        why = f": {message}" if message else ""
        if task.is_over:
            raise LifecycleError(
                f"{task.kind} {task.id} has ended ({task.state}{why}). Its log: `detslurm"
                f" {task.kind} logs {task.id}`. `detslurm {task.kind} start` starts a new"
                f" {task.kind}"
            )
        report(f"{task.kind} {task.id} is {task.state}{why}")
        sleep(max(_POLL_SECONDS, poller.rest))
        poller.poll()
    return address
