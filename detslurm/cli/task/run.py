"""`detslurm cmd run`: a program as a job, with its output and its exit status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, together
from detslurm.cli.output.human import on_terminal
from detslurm.cli.output.printing import json_option, note, print_json
from detslurm.cli.output.tables import log_line
from detslurm.cli.submission import config_options, submit
from detslurm.sdk.experiments.polling import follow_logs
from detslurm.sdk.submission.command_line import entrypoint_of
from detslurm.sdk.tasks.document import read_document

if TYPE_CHECKING:
    from detslurm.sdk.tasks.document import TaskDocument
    from detslurm.sdk.tasks.task import Task
    from detslurm.sdk.trials.log_lines import LogLine

task_options = together(
    click.option("--slots", type=int, help="Give it this many GPUs, or CPUs without GPUs."),
    click.option("--time", metavar="TIME", help="Limit the job: minutes, or 4:00:00."),
    click.option("--pool", metavar="NAME", help="Run in this partition."),
    click.option("--description", metavar="TEXT", help="Show this text in lists."),
    config_options.overrides,
    click.option(
        "--config-file",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Read the configuration from this YAML file.",
    ),
    config_options.template,
    submit.cluster,
)
"""The options of every command that starts a task; `document_of` takes them."""


def document_of(kind: str, options: Mapping[str, Any]) -> TaskDocument:
    """The `TaskDocument` that `task_options` ask for."""
    time = options["time"]
    resources = {"slots_per_trial": options["slots"], "resource_pool": options["pool"]}
    given: dict[str, Any] = {
        "description": options["description"],
        "resources": {name: value for name, value in resources.items() if value is not None},
        "slurm": {} if time is None else {"time": int(time) if time.isdigit() else time},
    }
    chosen = {name: value for name, value in given.items() if value}
    return read_document(kind, options["config_file"], options["overrides"], chosen)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@task_options
@click.option(
    "-c",
    "--context",
    "context_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy this directory, and run in the copy. [default: the current directory]",
)
@submit.include
@click.option("-d", "--detach", is_flag=True, help="Print the id, and return at once.")
@json_option
def run(words: tuple[str, ...], detach: bool, as_json: bool, **options: Any) -> None:
    """Run COMMAND as a job, print its output, and exit with its exit status.

    It runs in a copy of the current directory. Ctrl-C ends the printing alone: the command goes on.
    A construct of the shell is one quoted argument.

    \b
    Examples:
      detslurm cmd run python3 evaluate.py --split test
      detslurm cmd run --slots 2 --time 30 nvidia-smi
      detslurm cmd run 'for i in 1 2 3; do echo $i; done'
      detslurm cmd run --detach --config-file cpu.yaml make
    """
    document = document_of("command", options)
    entrypoint = entrypoint_of(words) if words else document.entrypoint
    if entrypoint is None:
        raise click.UsageError("name the program: detslurm cmd run COMMAND")
    context = options["context_dir"]
    if context is None and document.work_dir is None:
        context = Path.cwd()
    task = client().start_task(
        document,
        entrypoint,
        context,
        includes=options["includes"],
        template=options["template"],
        cluster=options["cluster_name"],
    )
    if as_json:
        print_json(task.to_dict())
    elif detach:
        click.echo(task.id)
    if not (as_json or detach) and (status := follow(task)):
        raise click.exceptions.Exit(status)


def follow(task: Task) -> int:
    """Print the task's output until it ends; its exit status."""
    note(f"Started command {task.id}: job {task.job_id}")
    try:
        _print(follow_logs(task.trial, report=note))
    except KeyboardInterrupt:
        note(
            f"Command {task.id} goes on. `detslurm cmd logs -f {task.id}` prints its output again,"
            f" `detslurm cmd kill {task.id}` ends it."
        )
        raise
    task.reload()
    if task.state != "COMPLETED" and not task.trial.row.run_count:  # else its log has the reason
        note(f"Command {task.id} is {task.state}{f': {task.reason}' if task.reason else ''}")
    return task.exit_status


def _print(lines: Iterable[LogLine]) -> None:
    """The program's lines to stdout, those around it to stderr."""
    terminal = on_terminal()
    for line in lines:
        # The runner's lines have no rank; those of a node's agent have.
        if line.rank is not None and not line.text.startswith("detslurm: "):
            click.echo(log_line(line.text) if terminal else line.text)
        else:
            note(line.text)
