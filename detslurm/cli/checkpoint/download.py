"""Commands that copy checkpoints: of an experiment, of a trial, or by their ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, experiment_id, trial_id
from detslurm.cli.checkpoint.arguments import one_uuid
from detslurm.cli.output.printing import Document, describes, note
from detslurm.cli.output.progress import transfer
from detslurm.sdk.checkpoints.download import how_to_load

if TYPE_CHECKING:
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint

Command = Callable[..., Any]

_quiet = click.option("-q", "--quiet", is_flag=True, help="Print paths only.")


def _to(text: str) -> Callable[[Command], Command]:
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("-o", "--output-dir", type=kind, help=f"Copy to {text}.")


def _by_metric(command: Command) -> Command:
    """Adds --sort-by and --smaller-is-better."""
    name = click.option(
        "--sort-by", metavar="METRIC", help="Rank by this validation metric, not the searcher's."
    )
    smaller = click.option(
        "--smaller-is-better",
        type=bool,
        metavar="BOOL",
        help="Take its smallest value as the best, or its largest.",
    )
    return name(smaller(command))


def _rank(sort_by: str | None, smaller: bool | None) -> None:
    if (sort_by is None) != (smaller is None):
        raise click.UsageError("--sort-by and --smaller-is-better belong together")


@click.command()
@one_uuid
@_to("this directory, by default checkpoints/UUID")
@_quiet
@describes
def download(uuid: str, output_dir: Path | None, quiet: bool) -> Document:
    """Copy a checkpoint, with the code of its Trial class, and print its path.

    A download that was interrupted continues when the command is given again.

    \b
    Examples:
      detslurm checkpoint download 1b4e28ba
      detslurm checkpoint download 1b4e28ba -o model/
    """
    return _copied([client().checkpoint(uuid)], lambda one: _target(one, output_dir), quiet)


def _target(one: Checkpoint, output_dir: Path | None) -> Path:
    return output_dir or Path("checkpoints") / one.uuid


@click.command("download")
@experiment_id
@click.option("--best", is_flag=True, help="Copy the best checkpoint, as by default.")
@click.option("--top-n", type=click.IntRange(min=1), metavar="N", help="Copy the N best ones.")
@click.option("--front", is_flag=True, help="Copy all checkpoints of the Pareto front.")
@_by_metric
@_to("directories UUID below this one, by default checkpoints")
@_quiet
@describes
def download_of_experiment(
    experiment_id: int,
    best: bool,
    top_n: int | None,
    front: bool,
    sort_by: str | None,
    smaller_is_better: bool | None,
    output_dir: Path | None,
    quiet: bool,
) -> Document:
    """Copy the best checkpoints of an experiment, and print their paths, the best first.

    If the search has several metrics or constraints, the best one is that with the best first
    metric, of those that keep all constraints. --front copies all that no other one beats.

    \b
    Examples:
      detslurm experiment download 7
      detslurm experiment download 7 --front
      detslurm experiment download 7 --top-n 3 -o models/
      detslurm experiment download 7 --sort-by accuracy --smaller-is-better false
    """
    if best and top_n is not None:
        raise click.UsageError("--best can't be combined with --top-n")
    if front and (best or top_n is not None or sort_by is not None):
        raise click.UsageError("--front can't be combined with --best, --top-n or --sort-by")
    _rank(sort_by, smaller_is_better)
    experiment = client().stored(experiment_id)
    if front:
        found = experiment.pareto_checkpoints()
    else:
        found = experiment.top_n_checkpoints(top_n or 1, sort_by, smaller_is_better)
    folder = output_dir or Path("checkpoints")
    return _copied(found, lambda one: folder / one.uuid, quiet)


@click.command("download")
@trial_id
@click.option(
    "--best", is_flag=True, help="Choose the checkpoint with the best validation at its step."
)
@click.option("--latest", is_flag=True, help="Choose the newest checkpoint.")
@click.option("--outputs", is_flag=True, help="Copy the outputs instead, which the code wrote.")
@click.option("--uuid", help="Choose the checkpoint with this UUID, or one that begins so.")
@_by_metric
@_to("this directory, by default checkpoints/UUID")
@_quiet
@describes
def download_of_trial(
    trial_id: int,
    best: bool,
    latest: bool,
    outputs: bool,
    uuid: str | None,
    sort_by: str | None,
    smaller_is_better: bool | None,
    output_dir: Path | None,
    quiet: bool,
) -> Document:
    """Copy a checkpoint of a trial, with the code of its Trial class, and print its path.

    \b
    Examples:
      detslurm trial download 12 --best -o model/
      detslurm trial download 12 --latest
      detslurm trial download 12 --outputs -o outputs/
    """
    if best + latest + outputs + (uuid is not None) != 1:
        raise click.UsageError("one of --best, --latest, --outputs and --uuid is required")
    _rank(sort_by, smaller_is_better)
    trial = client().stored_trial(trial_id)
    if outputs:
        chosen = trial.outputs()
    elif best:
        chosen = trial.top_checkpoint(sort_by, smaller_is_better)
    else:
        chosen = trial.latest_checkpoint() if latest else trial.find_checkpoint(uuid or "")
    return _copied([chosen], lambda one: _target(one, output_dir), quiet)


def _copied(
    found: Sequence[Checkpoint], target: Callable[[Checkpoint], Path], quiet: bool
) -> Document:
    paths = []
    for one in found:
        with transfer(one.uuid[:8], quiet=quiet) as progress:
            paths.append(one.download(target(one), progress=progress))
    if paths and not quiet and found[0].kind is None:
        note(how_to_load(paths[0], found[0]._directory.foreign_owner()))
    rows = [{"uuid": c.uuid, "path": str(path)} for c, path in zip(found, paths, strict=True)]
    return Document(lambda: "\n".join(map(str, paths)), lambda: rows)
