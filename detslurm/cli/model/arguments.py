"""Arguments that name a model, and the values to set."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from detslurm.cli.lazy import completed_by

model_name = click.argument("name", metavar="NAME|ID", shell_complete=completed_by("models"))
several_models = click.argument(
    "names",
    metavar="NAME|ID...",
    nargs=-1,
    required=True,
    shell_complete=completed_by("models"),
)
of_version = click.option(
    "--version", type=click.IntRange(1), metavar="N", help="Change version N of the model."
)


def pairs(words: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as data: VALUE is JSON where it can be, else text. Raises BadParameter."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise click.BadParameter(f"{word!r} is not KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found
