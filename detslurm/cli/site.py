"""`detslurm site`: the site profile of this cluster."""

from __future__ import annotations

from pathlib import Path

import click

from detslurm.cli.output import json_option, note, print_json


@click.group()
def site() -> None:
    """Show or create the site profile of this cluster."""


@site.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the profile to this file instead of printing it.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(output: Path | None, force: bool) -> None:
    """Create a site profile from what Slurm reports of this cluster.

    \b
    Examples:
      detslurm site init -o ~/.config/detslurm/site.yaml
    """
    from detslurm.sdk.errors import LifecycleError
    from detslurm.slurm.cluster import SlurmCluster
    from detslurm.slurm.mpi import mpi_types
    from detslurm.slurm.site import site_profile_from

    if output is not None and output.exists() and not force:
        raise LifecycleError(f"{output} exists already; --force overwrites it")
    text = site_profile_from(SlurmCluster().limits(), mpi_types())
    if output is None:
        click.echo(text, nl=False)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    note(f"Wrote {output}")


@site.command()
@json_option
def show(as_json: bool) -> None:
    """Print the site profile that applies here, and its path."""
    from detslurm.config import load_site

    profile = load_site()
    if as_json:
        print_json(profile.to_dict())
        return
    if not profile.source:
        note("No site profile applies here; `detslurm site init` creates one.")
        return
    note(f"From {profile.source}")
    click.echo(Path(profile.source).read_text(), nl=False)
