"""`detslurm notify`: see, try and send notices."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

import click

from detslurm.cli.arguments.ids import client
from detslurm.cli.lazy import Entry, lazy_group
from detslurm.cli.output.printing import Column, Document, Table, describes, shows
from detslurm.cli.output.tables import columns_text
from detslurm.sdk.client import Client
from detslurm.sdk.notices import definition_rows, flush_waiting, recent_notices, send_trial

COMMANDS = {
    "list": Entry("notify:list_notices", "List definitions, and the newest notices.", ("ls",)),
    "test": Entry("notify:test", "Send a trial message."),
    "flush": Entry("notify:flush", "Send what waits; for cron."),
}

_DEFINITIONS = [
    Column("Notice", itemgetter("name")),
    Column("Kind", itemgetter("kind")),
    Column("To", itemgetter("to")),
    Column("Triggers", lambda row: " ".join(row["triggers"])),
    Column("Mode", itemgetter("mode")),
]
_NOTICES = [
    Column("Experiment", attrgetter("experiment")),
    Column("Event", attrgetter("trigger")),
    Column("Time", attrgetter("time"), kind="clock"),
    Column("Notice", attrgetter("to")),
    Column("State", attrgetter("state")),
    Column("Answer", attrgetter("detail"), drop=1),
]

notify = lazy_group("notify", "Send notices of the end of experiments.", COMMANDS)


@click.command("list")
@shows
def list_notices() -> Table:
    """List your definitions, and the notices of your newest experiments.

    Of a URL only scheme and host are shown. `unknown` is a notice that may have been sent: its
    sender got no answer, or was killed. It is not sent again.

    \b
    Examples:
      detslurm notify list
    """
    defined, mine = definition_rows(), client()
    rows = [] if mine.missing() else list(recent_notices(mine.store))
    return Table(
        _NOTICES,
        rows,
        lambda: {"definitions": defined, "notices": [row._asdict() for row in rows]},
        text=lambda: _text(defined, rows),
    )


def _text(defined: Sequence[Any], rows: Sequence[Any]) -> str:
    if not defined:
        return "No notices are defined. docs/notices.md shows how"
    notices = f"\n\n{columns_text(_NOTICES, rows)}" if rows else ""
    return f"{columns_text(_DEFINITIONS, defined)}{notices}"


@click.command()
@click.argument("name")
@describes
def test(name: str) -> Document:
    """Send a trial message by the definition NAME, and print the answer.

    \b
    Examples:
      detslurm notify test phone
    """
    answer = send_trial(name)
    text = f"{name}: {answer.outcome}: {answer.detail}"
    data = {"name": name, "outcome": answer.outcome, "detail": answer.detail}
    return Document(lambda: text, lambda: data, failed=answer.outcome != "sent")


@click.command()
@describes
def flush() -> Document:
    """Send the notices that jobs could not send; print nothing unless something was refused.

    Experiments whose jobs have died are found, too. A line of your crontab for every ten minutes
    begins with `*/10 * * * *`.

    \b
    Examples:
      detslurm notify flush
    """
    done = flush_waiting(Client(warn=lambda text: None))
    failed = done.refused + done.unknown
    text = f"{failed} not sent for sure: see `detslurm notify list`" if failed else ""
    return Document(lambda: text, lambda: vars(done))
