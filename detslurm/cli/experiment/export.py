"""`detslurm experiment export`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import client, several_ids
from detslurm.cli.output.printing import Document, describes
from detslurm.cli.output.progress import one_by_one
from detslurm.sdk.export import FORMATS
from detslurm.sdk.export import export as write

if TYPE_CHECKING:
    from detslurm.sdk.export import ExportedTrial


@click.command()
@several_ids
@click.option("--to", type=click.Choice(FORMATS), required=True, help="Write this format.")
@click.option(
    "-o",
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Write to this directory; what it has already is brought up to date.",
)
@describes
def export(ids: list[int], to: Any, output_dir: Path) -> Document:
    """Write experiments in the format of another tool.

    Each trial becomes a run with its hyperparameters, its configuration with secrets masked, its
    state and its metrics; what a trial repeated after a restart is there once. A second export to
    the same directory writes only trials that have changed. Nothing goes over the network.

    \b
    Examples:
      detslurm experiment export 7 --to csv -o tables
      detslurm experiment export 7 8 9 --to mlflow -o runs
      detslurm experiment export 7 --to wandb -o runs && wandb sync runs/wandb/offline-run-*
    """
    mine = client()
    chosen = [mine.stored(number) for number in ids]
    trials = sum(len(experiment.view.trials) for experiment in chosen)
    with one_by_one("Exporting", trials) as step:
        done = write(chosen, to, output_dir, progress=lambda _: step())
    return Document(lambda: _summary(done, output_dir), lambda: done)


def _summary(done: list[ExportedTrial], folder: Path) -> str:
    counts = Counter(trial.change for trial in done)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none has begun"
    trials = counted(len(done), "trial")
    rows = sum(trial.rows for trial in done)
    return f"Exported {trials} to {folder}: {kinds}; {rows} new rows of metrics"
