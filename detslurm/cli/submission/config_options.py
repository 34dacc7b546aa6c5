"""How commands are given the configuration of an experiment."""

from __future__ import annotations

import click

from detslurm.cli.lazy import completed_by

config_file = click.argument("config_file", metavar="CONFIG", shell_complete=completed_by("files"))
overrides = click.option(
    "--config",
    "overrides",
    multiple=True,
    metavar="A.B=VALUE",
    shell_complete=completed_by("config_keys"),
    help="Override one key of the configuration with VALUE, which is YAML. Repeatable.",
)


def _at_most_one(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> str | None:
    if len(names) > 1:
        raise click.BadParameter(
            f"only one template can be merged, not {len(names)}: make one of {', '.join(names)}"
        )
    return names[0] if names else None


template = click.option(
    "--template",
    multiple=True,
    callback=_at_most_one,
    metavar="NAME|FILE",
    shell_complete=completed_by("templates_and_files"),
    help="Merge CONFIG over this template.",
)
