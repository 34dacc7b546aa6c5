"""Commands that show a trial's numbers: the metrics it reported and the profiler's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from detslurm.cli.arguments.ids import client, together, trial_id
from detslurm.cli.output.printing import Column, Table, note, shows
from detslurm.sdk.parts import column_name, flat

if TYPE_CHECKING:
    from detslurm.sdk.trials.trial import Trial

_row_options = together(
    click.option(
        "--name",
        "names",
        multiple=True,
        metavar="NAME",
        help="Show only the metric NAME; nested ones have dotted names. Repeatable.",
    ),
    click.option("--head", type=click.IntRange(min=0), metavar="N", help="Show the first N rows."),
    click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Show the last N rows."),
)


class FigureRow(NamedTuple):
    """One line of figures: what identifies it, and the figures by name."""

    keys: Mapping[str, Any]
    metrics: Mapping[str, Any]


class Shown(NamedTuple):
    """How the user wants rows to be shown."""

    names: Sequence[str]
    head: int | None
    tail: int | None


@click.command()
@trial_id
@click.option("--group", help='Show only one group, such as "training" or "validation".')
@_row_options
@shows
def metrics(trial_id: int, group: str | None, **options: Any) -> Table:
    """Show the metrics that a trial has reported, one row for each group and step.

    The rows follow one clean curve: what a restarted run reported again is shown once.

    \b
    Examples:
      detslurm trial metrics 7 --group validation --tail 10
      detslurm trial metrics 7 --name loss --csv > loss.csv
    """
    shown, trial = _shown(options), client().stored_trial(trial_id)
    try:
        found = list(_metric_rows(trial, group))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--group") from None
    if not found:
        which = f"metrics of the group {group!r}" if group else "metrics"
        note(f"Trial {trial.id} is {trial.state} and has reported no {which}.")
    keys = [
        Column("Group", lambda row: row.keys["group"], csv_header="group"),
        Column("# of Batches", lambda row: row.keys["steps"], csv_header="steps"),
        Column("Run", lambda row: row.keys["run"], csv_header="run"),
        Column("Time", lambda row: row.keys["time"], "clock", csv_header="time", csv_only=True),
    ]
    return _table(found, keys, shown)


@click.command()
@trial_id
@click.option(
    "--group",
    type=click.Choice(["cpu", "memory", "disk", "network", "gpu"]),
    help="Show only the figures of one kind.",
)
@_row_options
@shows
def profile(trial_id: int, group: str | None, **options: Any) -> Table:
    """Show what the profiler recorded of a trial's nodes, in the order of time.

    A row has the averages of one report on one node, or of one of the node's disks or GPUs
    (DEVICE). Units: cpu_util_simple, disk_util and gpu_util in percent, memory_free in GB,
    gpu_free_memory in bytes, disk_iops in operations a second, *_throughput_* in bytes a second.

    \b
    Examples:
      detslurm trial profile 7 --group gpu --tail 20
      detslurm trial profile 7 --csv > profile.csv
    """
    shown, trial = _shown(options), client().stored_trial(trial_id)
    found = _profile_rows(trial, group)
    if not found:
        _note_no_profile(trial, group)
    keys = [
        Column("Time", lambda row: row.keys["time"], "clock", csv_header="time"),
        Column("Run", lambda row: row.keys["run"], csv_header="run"),
        Column("Node", lambda row: row.keys["node"], csv_header="node"),
        Column("Device", lambda row: row.keys["device"], csv_header="device"),
    ]
    return _table(found, keys, shown)


def _shown(options: Mapping[str, Any]) -> Shown:
    shown = Shown(**options)
    if shown.head is not None and shown.tail is not None:
        raise click.UsageError("--head can't be combined with --tail")
    return shown


def _metric_rows(trial: Trial, group: str | None) -> Iterator[FigureRow]:
    for row in trial.metric_rows(group):
        keys = {"group": row.group, "steps": row.steps, "run": row.run, "time": row.time}
        yield FigureRow(keys, dict(flat(row.metrics)))


def _profile_rows(trial: Trial, group: str | None) -> list[FigureRow]:
    """The groups of one report side by side; each disk and GPU in a row of its own."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in trial.profile(group):
        for name, value in row.metrics.items():
            device, figures = (name, value) if isinstance(value, dict) else (None, {name: value})
            found.setdefault((row.time, row.run, row.node, device), {}).update(figures)
    names = ("time", "run", "node", "device")
    return [FigureRow(dict(zip(names, key, strict=True)), value) for key, value in found.items()]


def _chosen(rows: Sequence[FigureRow], shown: Shown) -> Sequence[FigureRow]:
    """The rows that have any of the names, from the end that was asked for."""
    if shown.names:
        known = {name for row in rows for name in row.metrics}
        if missing := [name for name in shown.names if rows and name not in known]:
            raise click.UsageError(
                f"there is no metric {', '.join(missing)}; there are {', '.join(sorted(known))}"
            )
        picked = ({n: row.metrics[n] for n in shown.names if n in row.metrics} for row in rows)
        kept = zip(rows, picked, strict=True)
        rows = [FigureRow(row.keys, values) for row, values in kept if values]
    if shown.tail is not None:
        return rows[len(rows) - min(shown.tail, len(rows)) :]
    return rows[: shown.head]


def _table(found: Sequence[FigureRow], keys: Sequence[Column], shown: Shown) -> Table:
    """The chosen rows; their columns are those of all rows, whichever are chosen."""
    rows = _chosen(found, shown)
    names = shown.names or list(dict.fromkeys(name for row in found for name in row.metrics))
    taken = {column.csv_header for column in keys if column.csv_header}
    columns = [*keys]
    for place, name in enumerate(names, 1):
        column = _metric_column(name, place, column_name(name, taken))
        repeats = name not in shown.names and _repeats_steps(rows, name)
        columns.append(column._replace(csv_only=repeats))
    data = [{**row.keys, "metrics": row.metrics} for row in rows]
    return Table(columns, rows, lambda: data)


def _metric_column(name: str, place: int, in_csv: str) -> Column:
    """On a narrow terminal the last metrics are left out first."""
    return Column(name, lambda row: row.metrics.get(name), drop=place, csv_header=in_csv)


def _repeats_steps(rows: Iterable[FigureRow], name: str) -> bool:
    """A Trainer reports the steps once more, for searches that count by them."""
    return name == "batches" and all(
        row.metrics.get(name) in (None, row.keys.get("steps")) for row in rows
    )


def _note_no_profile(trial: Trial, group: str | None) -> None:
    if group and trial.profile():
        note(f"The profiler recorded no {group} figures of trial {trial.id}.")
        return
    note(
        f"Trial {trial.id} is {trial.state} and its profiler recorded nothing so far. Where it is"
        " off, switch it on with `profiling: {enabled: true}` in the configuration, or"
        " `core.profiler.on()`."
    )
