"""`detslurm doctor`: check what a submission needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from detslurm.cli.output import json_option, print_json

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", None),
    "warning": ("WARNING", "yellow"),
    "broken": ("BROKEN", "red"),
}


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--cluster",
    "cluster_name",
    type=click.Choice(["auto", "slurm", "local"]),
    default="auto",
    show_default=True,
    help="Choose the cluster to check.",
)
@json_option
def doctor(directory: Path | None, cluster_name: str, as_json: bool) -> None:
    """Check the store, Slurm and this Python, and advise what to do.

    With DIRECTORY, check whether a store could be there. The exit status is 1 if something is
    broken.

    \b
    Examples:
      detslurm doctor
      detslurm doctor /scratch/$USER
    """
    from detslurm.sdk.client import default_root
    from detslurm.sdk.doctor import examine
    from detslurm.sdk.queues import connector

    root = directory.absolute() if directory is not None else default_root()
    findings = examine(root, partial(connector(root), cluster_name))
    broken = any(finding.level == "broken" for finding in findings)
    if as_json:
        print_json({"healthy": not broken, "findings": [f._asdict() for f in findings]})
    else:
        for finding in findings:
            _show(*finding)
        click.echo("\nSomething is broken." if broken else "\nNothing is broken.")
    if broken:
        raise click.exceptions.Exit(1)


def _show(area: str, level: str, text: str, advice: str) -> None:
    word, color = _MARKS[level]
    first, *rest = text.splitlines()
    click.echo(f"{area:>7}  {click.style(f'{word:<7}', fg=color)}  {first}")
    for line in [*rest, *advice.splitlines()]:
        click.echo(f"{'':>18}{line}")
