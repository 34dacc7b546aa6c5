"""How commands are given the configuration of an experiment."""

from __future__ import annotations

import click

config_file = click.argument("config_file", metavar="CONFIG")
overrides = click.option(
    "--config",
    "overrides",
    multiple=True,
    metavar="A.B=VALUE",
    help="Override one key of the configuration with VALUE, which is YAML. Repeatable.",
)
template = click.option("--template", metavar="NAME|FILE", help="Merge CONFIG over this template.")
