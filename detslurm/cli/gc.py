"""`detslurm gc`: delete what nobody needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detslurm._quantities import counted
from detslurm.cli.arguments.ids import any_experiments, client
from detslurm.cli.output.printing import json_option, note, print_json, size, table

if TYPE_CHECKING:
    from detslurm.sdk.disk.cleaning import Collected


@click.command()
@any_experiments
@click.option("-n", "--dry-run", is_flag=True, help="Delete nothing; show what would be deleted.")
@click.option(
    "--unrecorded",
    is_flag=True,
    help="Delete also checkpoints that nothing in the store knows and that are older than a day."
    " Only where no other store uses the same checkpoint storage.",
)
@json_option
def gc(ids: list[int], dry_run: bool, unrecorded: bool, as_json: bool) -> None:
    """Delete checkpoints that no policy keeps, and what crashes have left behind.

    The jobs of an experiment collect by themselves; this is for what they could not: deletions and
    uploads that broke off, temporary files of processes that died, experiments whose jobs were
    killed. What may still be in use stays.

    \b
    Examples:
      detslurm gc --dry-run
      detslurm gc 7 8
    """
    if unrecorded and ids:
        raise click.UsageError("--unrecorded looks at the whole store: leave out the ids")
    done = client().gc(ids or None, dry_run=dry_run, unrecorded=unrecorded)
    if as_json:
        print_json({"dry_run": dry_run, "freed": done.freed, **_plain(done)})
        return
    rows = [*_rows(done)]
    if rows:
        click.echo(table(("Experiment", "What", "Where", "Size"), rows))
    verb = "Would free" if dry_run else "Freed"
    click.echo(f"{verb} {size(done.freed)}" if rows else "There is nothing to delete")
    if done.unrecorded:
        note(
            f"unknown to this store: {counted(done.unrecorded, 'checkpoint')} in the storage; if"
            " no other store uses that storage, `detslurm gc --unrecorded` deletes what is unknown"
        )


def _rows(done: Collected) -> list[tuple[object, ...]]:
    collected = [
        (one.experiment, f"checkpoint of trial {one.trial}", one.uuid, size(one.size))
        for one in done.checkpoints
    ]
    left = [
        ("" if one.experiment is None else one.experiment, one.kind, one.path, size(one.size))
        for one in done.leftovers
    ]
    return [*collected, *left]


def _plain(done: Collected) -> dict[str, object]:
    return {
        "checkpoints": done.checkpoints,
        "leftovers": done.leftovers,
        "unrecorded": done.unrecorded,
    }
