"""`detslurm site`: the profile of this cluster."""

from __future__ import annotations

from pathlib import Path

import click

from detslurm.cli.output import json_option, note, print_json


@click.group()
def site() -> None:
    """Show or make the profile of this cluster."""


@site.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write it there instead of printing it.",
)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
def init(output: Path | None, force: bool) -> None:
    """Fill a site profile from what Slurm tells about this cluster."""
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
    """Print the profile that applies here, and where it comes from."""
    from detslurm.config import load_site

    profile = load_site()
    if as_json:
        print_json(profile.to_dict())
        return
    if not profile.source:
        note("No site profile applies here; `detslurm site init` makes one.")
        return
    note(f"From {profile.source}")
    click.echo(Path(profile.source).read_text(), nl=False)
