"""The commands that all kinds of tasks share.

The module of a kind makes its own with these functions and names them in its table:

    list_shells = listing("shell")
    kill = killing("shell")
    shell = lazy_group("shell", "...", {"list": Entry("task.shell:list_shells", "...", ("ls",))})
"""

from __future__ import annotations

from typing import Any

import click

from detslurm.cli.arguments.ids import client, for_each, several_tasks, task_id
from detslurm.cli.output.printing import (
    Column,
    Document,
    Table,
    describes,
    json_option,
    rfc3339,
    shows,
)
from detslurm.cli.trial.logs import log_options, show_log
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.parts import as_yaml
from detslurm.sdk.tasks.starting import check_kind
from detslurm.sdk.tasks.task import row_data

_NAMES = {"command": "cmd"}

_COLUMNS = [
    Column("ID", lambda one: one["id"]),
    Column("Owner", lambda one: one["owner"], drop=3, least=4),
    Column("Description", lambda one: one["description"], least=12),
    Column("State", lambda one: one["state"], "state"),
    Column("Exit Status", lambda one: one["exit_code"], drop=1),
    Column("Created", lambda one: one["created"], "time", drop=5),
    Column("Ended", lambda one: one["ended"], "time", drop=6),
    Column("Resource Pool", lambda one: one["resource_pool"], drop=4, least=4),
]


def group_name(kind: str) -> str:
    """The command of a kind of tasks: `cmd` for a command."""
    return _NAMES.get(kind, kind)


def examples(kind: str, *lines: str) -> str:
    """The examples of a command's help."""
    shown = "\n".join(f"  detslurm {group_name(kind)} {line}" for line in lines)
    return f"\n\n\b\nExamples:\n{shown}"


def listing(kind: str) -> click.Command:
    """The command `list` of a kind of tasks: of servers those that have not ended."""
    ended = kind == "command"
    more = "archived ones" if ended else "those that have ended"

    @click.command(
        "list", help=f"List {kind}s, the newest last." + examples(kind, "list", "list --all")
    )
    @click.option("-a", "--all", "is_all", is_flag=True, help=f"Include {more}.")
    @click.option("-q", "--quiet", is_flag=True, help="Print ids alone.")
    @shows
    def list_tasks(is_all: bool, quiet: bool) -> Table:
        found = client().task_rows(kind, archived=is_all)
        rows = [row_data(row) for row in found if is_all or ended or not row.finished]
        ids = "\n".join(str(row["id"]) for row in rows)
        return Table(_COLUMNS, rows, text=(lambda: ids) if quiet else None)

    return list_tasks


def logs_of(kind: str) -> click.Command:
    """The command `logs` of a kind of tasks."""

    @click.command(
        "logs", help=f"Print the output of a {kind}." + examples(kind, "logs 7", "logs -f last")
    )
    @task_id(kind)
    @log_options
    def logs(task_id: int, **options: Any) -> None:
        task = client().task(task_id, kind)
        show_log(task.trial, **options)
        if kind == "command" and options["follow"] and (status := task.reload().exit_status):
            raise click.exceptions.Exit(status)

    return logs


def killing(kind: str) -> click.Command:
    """The command `kill` of a kind of tasks."""

    @click.command("kill", help=f"End {kind}s at once." + examples(kind, "kill 7", "kill 7 8,9"))
    @several_tasks(kind)
    @json_option
    def kill(ids: list[int], as_json: bool) -> None:
        def act(experiment: Experiment) -> str:
            check_kind(experiment.id, experiment.row.task, kind)
            if experiment.kill():
                return f"Killed {kind} {experiment.id}"
            return f"{kind.capitalize()} {experiment.id} has already ended: {experiment.state}"

        for_each(ids, act, as_json=as_json)

    return kill


def describing(kind: str) -> click.Command:
    """The command `describe` of a kind of tasks."""

    @click.command(
        "describe",
        help=f"Show a {kind}: its state, job, node and program." + examples(kind, "describe 7"),
    )
    @task_id(kind)
    @describes
    def describe(task_id: int) -> Document:
        data = client().task(task_id, kind).to_dict()

        def text() -> str:
            shown = {name: _shown(name, value) for name, value in data.items()}
            lines = ((name, value) for name, value in shown.items() if value is not None)
            return "\n".join(f"{name.replace('_', ' '):>13}: {value}" for name, value in lines)

        return Document(text, lambda: data)

    return describe


def _shown(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if name in ("created", "started", "ended"):
        return rfc3339(value)
    return " ".join(value) if isinstance(value, list) else str(value)


def config_of(kind: str) -> click.Command:
    """The command `config` of a kind of tasks."""

    @click.command("config", help=f"Print a {kind}'s configuration as YAML, with secrets masked.")
    @task_id(kind)
    @describes
    def config(task_id: int) -> Document:
        data = client().task(task_id, kind).experiment.config

        def text() -> str:
            return as_yaml(data, sort_keys=True).rstrip("\n")

        return Document(text, lambda: data)

    return config
