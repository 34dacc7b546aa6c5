"""`detslurm notebook`: Jupyter as a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detslurm.cli.arguments.ids import client, task_id
from detslurm.cli.lazy import Entry, lazy_group
from detslurm.cli.output.printing import json_option
from detslurm.cli.task.commands import config_of, describing, killing, listing, logs_of
from detslurm.cli.task.opening import open_server, relay_option, report_started
from detslurm.cli.task.run import document_of, task_options
from detslurm.sdk.tasks.programs import notebook_entrypoint

KIND = "notebook"

list_notebooks = listing(KIND)
logs = logs_of(KIND)
kill = killing(KIND)
describe = describing(KIND)
config = config_of(KIND)

COMMANDS = {
    "start": Entry("task.notebook:start", "Start Jupyter as a job."),
    "open": Entry("task.notebook:open_notebook", "Print how to reach a notebook."),
    "list": Entry("task.notebook:list_notebooks", "List notebooks.", ("ls",)),
    "logs": Entry("task.notebook:logs", "Print the output of a notebook's server."),
    "kill": Entry("task.notebook:kill", "End notebooks at once."),
    "describe": Entry("task.notebook:describe", "Show a notebook: its state, job and node."),
    "config": Entry("task.notebook:config", "Print a notebook's configuration as YAML."),
}

notebook = lazy_group("notebook", "Work in JupyterLab on a node.", COMMANDS)


@click.command()
@task_options
@click.option(
    "-c",
    "--context",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Use this directory itself, not a copy. [default: the current directory]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port of the node's loopback address, not on a Unix socket; 0 is any.",
)
@click.option(
    "--ondemand",
    "in_portal",
    is_flag=True,
    help="Listen where Open OnDemand can reach it: a port of the node, with the token.",
)
@click.option("-d", "--detach", is_flag=True, help="Print the id, and return at once.")
@json_option
def start(
    directory: Path | None,
    port: int | None,
    in_portal: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Start Jupyter as a job, wait for it, and print how to reach it.

    Its files are those of the current directory. Ctrl-C ends the waiting alone. The notebook ends
    after idle_timeout (30m) without a running cell and without an open page.

    \b
    Examples:
      detslurm notebook start
      detslurm notebook start --slots 1 --time 4:00:00
      detslurm notebook start --config idle_timeout=2h --config notebook_idle_type=activity
      detslurm notebook start --detach --port 0
    """
    document = document_of(KIND, options)
    if directory is not None:
        document = document._replace(work_dir=str(directory.resolve()))
    task = client().start_task(
        document,
        notebook_entrypoint(document, port, in_portal=in_portal),
        template=options["template"],
        cluster=options["cluster_name"],
    )
    report_started(task, detach=detach, as_json=as_json)


@click.command("open")
@task_id(KIND)
@relay_option
@json_option
def open_notebook(task_id: int, is_relay: bool, as_json: bool) -> None:
    """Print how to reach a notebook, once it runs.

    \b
    Examples:
      detslurm notebook open 7
      detslurm notebook open last --relay
    """
    open_server(client().task(task_id, KIND), is_relay=is_relay, as_json=as_json)
