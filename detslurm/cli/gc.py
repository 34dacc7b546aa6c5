"""`detslurm gc`: delete checkpoints that no policy keeps, and the remains of crashes."""

from __future__ import annotations

from collections.abc import Iterator

import click
from msgspec import structs

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import any_experiments, client
from detslurm.cli.output.printing import json_option, note, print_json, size, table
from detslurm.sdk.disk.gc import Collected


@click.command()
@any_experiments
@click.option("-n", "--dry-run", is_flag=True, help="Delete nothing; show what would be deleted.")
@click.option(
    "--unrecorded",
    is_flag=True,
    help="Delete also checkpoints that no record of the store names and that are older than a day."
    " Only where no other store uses the same checkpoint storage.",
)
@json_option
def gc(ids: list[int], dry_run: bool, unrecorded: bool, as_json: bool) -> None:
    """Delete checkpoints that no policy keeps, and the remains of crashes.

    The jobs of an experiment collect by themselves. This command does the rest: deletions and
    uploads that broke off, temporary files of dead processes, experiments whose jobs were killed.
    Files that may still be in use stay.

    \b
    Examples:
      detslurm gc --dry-run
      detslurm gc 7 8
    """
    if unrecorded and ids:
        raise click.UsageError("--unrecorded looks at the whole store: leave out the ids")
    done = client().gc(ids or None, dry_run=dry_run, unrecorded=unrecorded)
    if as_json:
        print_json({"dry_run": dry_run, "freed": done.freed, **structs.asdict(done)})
        return
    rows = [*_rows(done)]
    if rows:
        click.echo(table(("Experiment", "What", "Where", "Size"), rows))
    verb = "Would free" if dry_run else "Freed"
    click.echo(f"{verb} {size(done.freed)}" if rows else "There is nothing to delete")
    if done.unrecorded:
        note(
            f"unknown to this store: {counted(done.unrecorded, 'checkpoint')} in the storage; if"
            " no other store uses that storage, `detslurm gc --unrecorded` deletes them"
        )


def _rows(done: Collected) -> Iterator[tuple[object, ...]]:
    for gone in done.checkpoints:
        yield gone.experiment, f"checkpoint of trial {gone.trial}", gone.uuid, size(gone.size)
    for left in done.leftovers:
        experiment = "" if left.experiment is None else left.experiment
        yield experiment, left.kind, left.path, size(left.size)
