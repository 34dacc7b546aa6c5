"""`detslurm usage`: the use of slots by user, project, experiment, month or pool."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Any

import click

from detslurm.cli.arguments.ids import client
from detslurm.cli.output.energy import energy_columns
from detslurm.cli.output.printing import Column, Table, note, shows
from detslurm.sdk.costs.usage import BY, By


@click.command()
@click.option("--by", type=click.Choice(BY), default="user", help="Show a row for each of these.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="Count only experiments that were submitted since this day, as in 2026-11-01.",
)
@shows
def usage(by: By, since: datetime | None) -> Table:
    """Show slot-hours, training time, energy and disk by user, project, month or pool.

    An experiment counts in the month of its submission, with all of its time. ETTR is the part of
    the time since the first start that was training, weighted by slots (see `detslurm experiment
    efficiency`). Disk is what `detslurm du` measured. An unknown figure stays empty: that is not 0.

    \b
    Examples:
      detslurm usage
      detslurm usage --by month --since 2026-01-01
      detslurm usage --by project --csv
    """
    found = client().usage(by, since=None if since is None else since.timestamp())
    if unknown := sum(one.unknown for one in found):
        note(f"The time of {unknown} of the experiments is unknown: no sum has it.")
    number = [Column("ID", attrgetter("experiment"), csv_header="experiment")]
    columns = [
        *(number if by == "experiment" else []),
        Column(by.capitalize(), attrgetter("name"), csv_header="name", least=8),
        Column("Experiments", attrgetter("experiments"), drop=2),
        Column("Trials", attrgetter("trials"), drop=3),
        _figure("Slot-h", "slot_hours", "{:.2f}".format),
        _figure("ETTR %", "ettr", lambda ratio: f"{100 * ratio:.1f}"),
        *energy_columns(attrgetter("energy"), drop=4),
        Column("Disk", attrgetter("disk"), "size", csv_header="disk", drop=1),
    ]
    return Table(columns, found)


def _figure(header: str, name: str, text: Callable[[float], str]) -> Column:
    """A figure in short for people, and as it is for programs."""
    figure = attrgetter(name)

    def shown(row: Any) -> str | None:
        found = figure(row)
        return None if found is None else text(found)

    return Column(header, shown, csv_header=name, csv_value=figure)
