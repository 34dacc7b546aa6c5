"""`experiment bundle` and `import`: experiments between sites."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import client, experiment_id
from detslurm.cli.output.printing import Document, describes, size, warn
from detslurm.cli.output.progress import transfer

if TYPE_CHECKING:
    from detslurm.sdk.bundle.importing import Imported
    from detslurm.sdk.bundle.writing import Bundled


@click.command()
@experiment_id
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write FILE: .tar.gz, .tgz or .tar. It must not exist.",
)
@click.option(
    "--checkpoints",
    type=click.Choice(["all", "best", "latest", "none"]),
    default="best",
    show_default=True,
    help="Take along all checkpoints, the best one, the latest one of each trial, or none.",
)
@describes
def bundle(experiment_id: int, output: Path, checkpoints: str) -> Document:
    """Put a finished experiment into one file, for another site: `detslurm import` reads it.

    Configuration, code, metrics, logs and checkpoints go along. Secrets of the configuration are
    left out; secrets in code and logs are in the file.

    \b
    Examples:
      detslurm experiment bundle 7 -o digits.tar.gz
      detslurm experiment bundle 7 -o digits.tar --checkpoints all
    """
    which = cast(Literal["all", "best", "latest", "none"], checkpoints)
    experiment = client().experiment(experiment_id)
    with transfer(output.name) as progress:
        made = experiment.bundle(output, checkpoints=which, progress=progress)
    text = f"Bundled experiment {experiment_id}: {made.path} ({size(made.size)})"
    return Document(lambda: "\n".join([text, *_bundled(made)]), lambda: _plain(made))


def _bundled(made: Bundled) -> list[str]:
    lines = [f"{counted(len(made.checkpoints), 'checkpoint')}, code and logs as they are"]
    if made.masked:
        lines.append(f"Left out: {', '.join(made.masked)}")
    return lines


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@describes
def import_bundle(file: Path) -> Document:
    """Read an experiment from a file that `detslurm experiment bundle` made, at another site.

    It gets new ids here, and its checkpoints go to this store's storage. Every byte is checked, and
    nothing is run. To load its checkpoints, or to run its code, is to trust the one who made it.

    \b
    Examples:
      detslurm import digits.tar.gz
    """
    with transfer(file.name) as progress:
        done = client().import_bundle(file, progress=progress)
    if done.masked:
        warn(f"without their values, which the bundle lacks: {', '.join(done.masked)}")
    return Document(lambda: _imported(done), lambda: _plain(done))


def _imported(done: Imported) -> str:
    return (
        f"Imported experiment {done.was} of {done.owner} as experiment {done.experiment_id}"
        f" ({counted(done.trials, 'trial')}, {counted(len(done.checkpoints), 'checkpoint')})"
    )


def _plain(value: Any) -> dict[str, Any]:
    return {
        name: str(item) if isinstance(item, Path) else item for name, item in asdict(value).items()
    }
