"""`detslurm template`: parts of configurations that are kept by name."""

from __future__ import annotations

from typing import Any

import click

from detslurm.cli.arguments.ids import client
from detslurm.cli.lazy import Entry, completed_by, lazy_group
from detslurm.cli.output.printing import Column, Document, Table, describes, shows
from detslurm.sdk.templates import Template

COMMANDS = {
    "create": Entry("template:create", "Keep a part of a configuration by a new name."),
    "set": Entry("template:set_template", "Create a template or replace it."),
    "describe": Entry("template:describe", "Print a template."),
    "list": Entry("template:list_templates", "List templates.", ("ls",)),
    "remove": Entry("template:remove", "Remove a template.", ("rm",)),
    "set-value": Entry("template:set_value", "Replace a part of a template."),
}

template = lazy_group("template", "Keep parts of configurations by name.", COMMANDS)

_new_name = click.argument("name")
_name = click.argument("name", shell_complete=completed_by("templates"))
_file = click.argument("file", metavar="FILE", shell_complete=completed_by("files"))
_shared = click.option(
    "--shared", is_flag=True, help="Use the group's template, in a store that a group shares."
)


@click.command()
@_new_name
@_file
@_shared
@describes
def create(name: str, file: str, shared: bool) -> Document:
    """Keep FILE, a YAML file with any part of a configuration, by the new name NAME.

    FILE may be - for standard input. `--template NAME` merges it below a configuration.

    \b
    Examples:
      detslurm template create a100 a100.yaml
      detslurm submit experiment.yaml --template a100
    """
    made = client().create_template(name, file, shared=shared)
    return _done(f"Created template {made.name}", made)


@click.command("set")
@_name
@_file
@_shared
@describes
def set_template(name: str, file: str, shared: bool) -> Document:
    """Keep FILE by the name NAME, whether there is a template of that name or not.

    \b
    Examples:
      detslurm template set a100 a100.yaml
    """
    made = client().set_template(name, file, shared=shared)
    return _done(f"Set template {made.name}", made)


@click.command()
@_name
@describes
def describe(name: str) -> Document:
    """Print the template NAME, as `--template NAME` takes it."""
    found = client().get_template(name)
    text = found.text.rstrip("\n")
    return Document(lambda: text, lambda: _data(found))


@click.command("list")
@click.option("-d", "--details", is_flag=True, help="Show what the templates set.")
@shows
def list_templates(details: bool) -> Table:
    """List templates: your own, and those of the group that shares the store."""
    rows = client().list_templates()
    columns = [
        Column("Name", lambda one: one.name),
        Column("Owner", lambda one: one.owner, drop=1),
        Column("Shared", lambda one: "yes" if one.shared else "", drop=2),
    ]
    if details:
        columns.append(Column("Configuration", lambda one: one.text.strip()))
    return Table(columns, rows, lambda: [_row(one, details) for one in rows])


@click.command()
@_name
@_shared
@describes
def remove(name: str, shared: bool) -> Document:
    """Remove the template NAME; experiments that were submitted with it stay as they are."""
    client().remove_template(name, shared=shared)
    return Document(lambda: f"Removed template {name}", lambda: {"name": name})


@click.group("set-value")
def set_value() -> None:
    """Replace a part of a template."""


@set_value.command()
@_name
@_file
@_shared
@describes
def config(name: str, file: str, shared: bool) -> Document:
    """Replace the configuration of the template NAME, which must exist, by FILE."""
    mine = client()
    mine.get_template(name, shared=shared)
    made = mine.set_template(name, file, shared=shared)
    return _done(f"Set template {made.name}", made)


def _done(text: str, made: Template) -> Document:
    return Document(lambda: text, lambda: _data(made))


def _data(one: Template) -> dict[str, Any]:
    return {**_row(one), "config": one.config}


def _row(one: Template, details: bool = False) -> dict[str, Any]:
    row = {"name": one.name, "path": str(one.path), "owner": one.owner, "shared": one.shared}
    return {**row, "text": one.text} if details else row
