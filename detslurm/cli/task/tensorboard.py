"""`detslurm tensorboard` in a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, task_id
from detslurm.cli.output.printing import json_option, note, print_json
from detslurm.cli.task.commands import config_of, describing, killing, listing, logs_of
from detslurm.cli.task.run import document_of

if TYPE_CHECKING:
    from detslurm.sdk.tasks.task import Task

KIND = "tensorboard"
LAPTOP_PORT = 6006

list_tensorboards = listing(KIND)
logs = logs_of(KIND)
kill = killing(KIND)
describe = describing(KIND)
config = config_of(KIND)


def start_in_job(
    ids: Sequence[int],
    trials: Sequence[int],
    options: Mapping[str, Any],
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Start a TensorBoard as a job, wait for it, and print how to reach it."""
    document = document_of(KIND, options)
    words = ["python3", "-P", "-m", "detslurm.look.tensorboard_task"]
    words += ["--idle-timeout", str(document.idle_timeout or 0)]
    words += ["--experiments", *map(str, ids), "--trials", *map(str, trials)]
    task = client().start_task(
        document, words, template=options["template"], cluster=options["cluster_name"]
    )
    if not detach:
        _open(task, as_json=as_json)
    elif as_json:
        print_json(task.to_dict())
    else:
        click.echo(task.id)


@click.command("open")
@task_id(KIND)
@json_option
def open_tensorboard(task_id: int, as_json: bool) -> None:
    """Print how to reach a TensorBoard in a job, once it runs.

    \b
    Examples:
      detslurm tensorboard open last
    """
    _open(client().task(task_id, KIND), as_json=as_json)


def _open(task: Task, *, as_json: bool) -> None:
    from detslurm.cli.task.opening import address_of, print_way, way_to

    try:
        address = address_of(task)
    except KeyboardInterrupt:
        note(f"TensorBoard {task.id} goes on. `detslurm tensorboard open {task.id}` waits again.")
        raise
    way = way_to(address, LAPTOP_PORT, "/")
    if as_json:
        print_json({**task.to_dict(), **way._asdict()})
        return
    print_way(way)
    note(
        f"TensorBoard {task.id} runs on {address.host}."
        f" `detslurm tensorboard kill {task.id}` ends it."
    )
