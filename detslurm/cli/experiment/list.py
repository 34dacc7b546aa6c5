"""`detslurm experiment list`: which experiments, which columns, in which order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, together
from detslurm.cli.experiment.pareto import row_data
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.human import human_time
from detslurm.cli.output.printing import Column, Table, shows, warn
from detslurm.sdk.disk.purge import in_danger, purge_days, warning_for_list
from detslurm.sdk.enums import OrderBy
from detslurm.sdk.experiments.ordering import duration, ordered
from detslurm.sdk.experiments.query import ExperimentQuery

if TYPE_CHECKING:
    from detslurm.sdk.parts import ExperimentRow

STATES = (
    "ACTIVE",
    "PAUSED",
    "STOPPING_CANCELED",
    "STOPPING_KILLED",
    "COMPLETED",
    "CANCELED",
    "ERROR",
)


TYPES = ("experiment", "command", "shell", "notebook", "tensorboard", "all")


def _seconds(row: ExperimentRow) -> float | None:
    return duration(row.started, row.ended)


def _duration(row: ExperimentRow) -> str:
    seconds = _seconds(row)
    return "" if seconds is None else human_time(seconds)


COLUMNS: Mapping[str, Column] = {
    "id": Column("ID", lambda row: row.id),
    "owner": Column("Owner", lambda row: row.owner, drop=4, least=4),
    "name": Column("Name", lambda row: row.name, least=12),
    "workspace": Column("Workspace", lambda row: row.workspace, drop=9, least=8),
    "project": Column("Project", lambda row: row.project, drop=8, least=8),
    "parent": Column("Parent ID", lambda row: row.parent, drop=10),
    "state": Column("State", lambda row: row.state, "state"),
    "reason": Column("Reason", lambda row: row.reason, drop=4, least=12),
    "progress": Column("Progress", lambda row: row.progress, "share", drop=2),
    "trials": Column("Trials", lambda row: row.trial_count, drop=3),
    "best": Column("Best", lambda row: row.best_value, drop=1),
    "metric": Column("Metric", lambda row: row.metric, drop=9, least=8),
    "created": Column("Created", lambda row: row.created, "time", drop=9),
    "started": Column("Started", lambda row: row.started, "time", drop=5),
    "ended": Column("Ended", lambda row: row.ended, "time", drop=6),
    "duration": Column("Duration", _duration, drop=9, csv_value=_seconds),
    "pool": Column("Resource Pool", lambda row: row.pool, drop=7, least=4),
    "slots": Column("Slots", lambda row: row.slots, drop=9),
    "labels": Column("Labels", lambda row: ", ".join(row.labels), drop=9, least=8),
    "description": Column("Description", lambda row: row.description, drop=9, least=12),
    "notes": Column("Notes", lambda row: row.notes, drop=9, least=12),
    "archived": Column("Archived", lambda row: "yes" if row.archived else "", drop=9),
    "cluster": Column("Cluster", lambda row: row.cluster, drop=9),
    "kind": Column("Type", lambda row: row.task or "experiment", drop=9),
}
_DEFAULT = ["id", "owner", "name", "parent", "state", "progress", "trials", "best"]
_DEFAULT += ["started", "ended", "pool"]


def _columns(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    """Names of columns, with commas."""
    if value is None:
        return None
    found = [word.strip().lower() for word in value.split(",") if word.strip()]
    wrong = [word for word in found if word not in COLUMNS]
    if wrong or not found:
        bad = ", ".join(wrong) or repr(value)
        raise click.BadParameter(f"no column {bad}; there are {', '.join(COLUMNS)}")
    return found


def _several(name: str, *more: str, metavar: str, help: str) -> Callable[..., Any]:
    return click.option(f"--{name}", *more, multiple=True, metavar=metavar, help=help)


list_options = together(
    click.option(
        "-a", "--all", "include_archived", is_flag=True, help="Include archived experiments."
    ),
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(STATES, case_sensitive=False),
        help="Show only experiments in this state. Repeatable.",
    ),
    click.option(
        "--type",
        "kind",
        type=click.Choice(TYPES),
        default="experiment",
        show_default=True,
        help="Show only those of this type.",
    ),
    _several("label", "labels", metavar="LABEL", help="Show only those with LABEL. Repeatable."),
    _several(
        "name", "names", metavar="NAME", help="Show only those of this name or glob. Repeatable."
    ),
    _several("user", "users", metavar="USER", help="Show only those of USER. Repeatable."),
    _several("workspace", "workspaces", metavar="NAME", help="Show only those in this workspace."),
    _several(
        "project",
        "projects",
        metavar="[WORKSPACE/]PROJECT",
        help="Show only those in this project.",
    ),
    click.option(
        "--sort",
        metavar="COLUMN",
        callback=_columns,
        shell_complete=completed_by("columns"),
        help="Sort by this column, or by several with commas, smallest first. By default by id.",
    ),
    click.option("--reverse", is_flag=True, help="Reverse the order."),
    click.option(
        "--columns",
        metavar="NAMES",
        callback=_columns,
        shell_complete=completed_by("columns"),
        help=f"Show these columns: names with commas, out of {', '.join(COLUMNS)}.",
    ),
    click.option(
        "--show-project", "--show_project", is_flag=True, help="Show workspaces and projects, too."
    ),
    click.option(
        "--limit",
        type=click.IntRange(min=0),
        metavar="N",
        help="Show only the N newest experiments, with --sort the first N.",
    ),
    click.option(
        "--offset",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Skip the N newest experiments, with --sort the first N.",
    ),
)
"""The options that choose experiments, columns and their order."""


@click.command("list")
@list_options
@shows
def list_experiments(**options: Any) -> Table:
    """List experiments, the newest last.

    \b
    Examples:
      detslurm experiment list
      detslurm experiment list --state ERROR --user alice --limit 20
      detslurm experiment list --name "mnist*" --sort best --columns id,name,best,labels
      detslurm experiment list --all --json
    """
    return chosen(**options)


def chosen(
    *,
    include_archived: bool,
    sort: list[str] | None,
    reverse: bool,
    columns: list[str] | None,
    show_project: bool,
    limit: int | None,
    offset: int,
    kind: str,
    **filters: tuple[str, ...],
) -> Table:
    """The experiments that the options ask for, as a table."""
    query = ExperimentQuery(**filters, types=() if kind == "all" else (kind,))
    mine = client()
    # Only as many are read as the options ask for.
    first = min(offset, sys.maxsize)
    last = sys.maxsize if limit is None else min(offset + limit, sys.maxsize)
    page = None if sort or limit is None or any(filters.values()) else last
    found: Iterable[ExperimentRow]
    found = filter(query.matches, mine.newest_rows(archived=include_archived, count=page))
    if (after := purge_days()) is not None:
        found = _warned_of_purge([*found], after)
    if sort:
        rows = _sorted([*found][::-1], sort, reverse=reverse)
        rows = rows[first:last]
    else:
        rows = [*islice(found, first, last)]
        rows = rows if reverse else rows[::-1]
    for row in rows:
        if row.submission:
            warn(f"experiment {row.id}: {row.submission}")
    names = columns or [
        *(["workspace", "project"] if show_project else []),
        *(["kind"] if kind == "all" else []),
        *_DEFAULT,
        *(["reason"] if any(row.state != "ERROR" and row.reason for row in rows) else []),
        *(["archived"] if include_archived else []),
    ]
    shown = [COLUMNS[name] for name in names]
    return Table(shown, rows, lambda: [row_data(row) for row in rows], wanted=bool(columns))


def _warned_of_purge(rows: list[ExperimentRow], after: int) -> list[ExperimentRow]:
    """The rows, newest first, after a warning of those whose files may soon be purged."""
    if text := warning_for_list(in_danger(reversed(rows), after), after):
        warn(text)
    return rows


def _sorted(rows: list[ExperimentRow], names: list[str], *, reverse: bool) -> list[ExperimentRow]:
    """By the columns; rows without a finite value there always come last."""
    order = OrderBy.DESCENDING if reverse else OrderBy.ASCENDING
    for name in reversed(names):
        rows = ordered(rows, _sort_key(name), order)
    return rows


def _sort_key(name: str) -> Callable[[ExperimentRow], Any]:
    value = COLUMNS[name].csv_value or COLUMNS[name].value

    def key(row: ExperimentRow) -> Any:
        found = value(row)
        return None if found == "" else found

    return key
