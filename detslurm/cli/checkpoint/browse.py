"""`detslurm checkpoint browse`."""

from __future__ import annotations

import click

from detslurm.cli.checkpoint.browser import CheckpointBrowser
from detslurm.cli.textual_extra import check_textual
from detslurm.sdk.client import Client


@click.command()
def browse() -> None:
    """Browse experiments, trials, checkpoints and their files in the terminal.

    Metrics are shown beside the tree. Keys: the arrows move, Enter opens and closes, r shows how to
    restore a checkpoint, d copies it, x deletes it (and asks first), u reads again, q quits.

    \b
    Examples:
      detslurm checkpoint browse
    """
    check_textual("checkpoint browse", "`detslurm checkpoint list` prints checkpoints")

    warnings: list[str] = []
    browser = CheckpointBrowser(Client(warn=warnings.append))
    browser.run()
    for text in [*dict.fromkeys(warnings), *browser.shown]:
        click.echo(text, err=text in warnings)
