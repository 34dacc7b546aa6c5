"""`detslurm top`."""

from __future__ import annotations

import click

from detslurm.cli.textual_extra import check_textual
from detslurm.sdk.client import Client


@click.command()
def top() -> None:
    """Watch experiments, trials and the queue in the terminal.

    Above are the experiments, below a page of the one under the cursor: 1 trials, 2 learning
    curves, 3 the log of a trial, 4 its checkpoints, 5 the queue. Keys: the arrows move, Tab goes to
    the other half, m shows the next metric's curves, / filters, p pauses, a activates, c cancels
    and k kills (each after a question), q quits. The queue is asked every 30 seconds at most.

    \b
    Examples:
      detslurm top
    """
    check_textual("top", "`detslurm experiment list` prints experiments")
    from detslurm.look.top.app import TopApp  # which needs textual
    from detslurm.look.top.watcher import Watcher

    TopApp(Watcher(), lambda warn: Client(warn=warn)).run()
