"""`detslurm checkpoint browse`."""

from __future__ import annotations

import click


@click.command()
def browse() -> None:
    """Browse experiments, trials, checkpoints and their files in the terminal.

    Metrics are shown beside the tree. Keys: the arrows move, Enter opens and closes, r shows how to
    restore a checkpoint, d copies it, x deletes it (and asks first), u reads again, q quits.

    \b
    Examples:
      detslurm checkpoint browse
    """
    import sys
    from importlib.util import find_spec

    from detslurm.sdk.errors import LifecycleError

    if find_spec("textual") is None:
        raise LifecycleError(
            "checkpoint browse needs textual, which is not installed for this Python: "
            "pip install 'detslurm[tui]'"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise LifecycleError(
            "checkpoint browse needs a terminal; `detslurm checkpoint list` prints checkpoints"
        )
    from detslurm.cli.checkpoint_browser import CheckpointBrowser
    from detslurm.sdk.client import Client

    warnings: list[str] = []
    browser = CheckpointBrowser(Client(warn=warnings.append))
    browser.run()
    for text in [*dict.fromkeys(warnings), *browser.shown]:
        click.echo(text, err=text in warnings)
