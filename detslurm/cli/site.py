"""`detslurm site`: the site profile of this cluster."""

from __future__ import annotations

from pathlib import Path

import click

from detslurm.cli.batch_script import packaged_table, packaged_text
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import Document, Table, describes, note, shows
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.parts import load_site
from detslurm.sdk.site_report import site_report


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
@click.option(
    "--from",
    "example",
    metavar="NAME",
    shell_complete=completed_by("site_examples"),
    help="Begin with an example, one of `detslurm site list`, instead of asking Slurm.",
)
def init(output: Path | None, force: bool, example: str | None) -> None:
    """Create a site profile from what Slurm reports of this cluster, or from an example.

    \b
    Examples:
      detslurm site init -o ~/.config/detslurm/site.yaml
      detslurm site init --from cpu-24h -o ~/.config/detslurm/site.yaml
    """
    if output is not None and output.exists() and not force:
        raise LifecycleError(f"{output} exists already; --force overwrites it")
    text = site_report() if example is None else _example(example)
    if output is None:
        click.echo(text, nl=False)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    note(f"Wrote {output}")


@site.command("list")
@shows
def list_profiles() -> Table:
    """List the examples of site profiles, each with the kind of cluster that it is for."""
    return packaged_table("sites", ".yaml", "For")


@site.command()
@click.argument("name", required=False, shell_complete=completed_by("site_examples"))
@describes
def show(name: str | None) -> Document:
    """Print the site profile that applies here, and its path; or the example NAME."""
    if name is not None:
        example = _example(name)
        return Document(lambda: example.rstrip("\n"), lambda: {"name": name, "profile": example})
    profile = load_site()

    def text() -> str:
        if not profile.source:
            note("No site profile applies here; `detslurm site init` creates one.")
            return ""
        note(f"From {profile.source}")
        return Path(profile.source).read_text().rstrip("\n")

    return Document(text, profile.to_dict)


def _example(name: str) -> str:
    return packaged_text("sites", ".yaml", "example", name)
