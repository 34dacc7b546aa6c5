"""`detslurm tensorboard` in a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from detslurm.cli.arguments.ids import client, task_id
from detslurm.cli.output.printing import json_option
from detslurm.cli.task.commands import config_of, describing, killing, listing, logs_of
from detslurm.cli.task.opening import open_server, relay_option, report_started
from detslurm.cli.task.run import document_of

KIND = "tensorboard"

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
    report_started(task, detach=detach, as_json=as_json)


@click.command("open")
@task_id(KIND)
@relay_option
@json_option
def open_tensorboard(task_id: int, is_relay: bool, as_json: bool) -> None:
    """Print how to reach a TensorBoard in a job, once it runs.

    \b
    Examples:
      detslurm tensorboard open last
    """
    open_server(client().task(task_id, KIND), is_relay=is_relay, as_json=as_json)
