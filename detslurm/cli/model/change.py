"""Commands that make, register, move, hide and delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from detslurm.cli.arguments.ids import client, report_each
from detslurm.cli.lazy import completed_by
from detslurm.cli.model.arguments import model_name, pairs, several_models
from detslurm.cli.output.printing import Document, confirm_deletion, describes, json_option

if TYPE_CHECKING:
    from detslurm.sdk.models.model import Model


def _each(names: tuple[str, ...], do: Callable[[Model], object], done: str, as_json: bool) -> None:
    mine = client()

    def act(name: str) -> str:
        model = mine.get_model(name)
        do(model)
        return f"{done} model {model.name}"

    report_each("model", dict.fromkeys(names), act, as_json=as_json)


@click.command()
@click.argument("name")
@click.option("--description", default="", help="Set the description.")
@click.option("--label", "labels", multiple=True, help="Set LABEL. Repeatable.")
@click.option(
    "--metadata", "words", multiple=True, metavar="KEY=VALUE",
    help="Set metadata: VALUE is JSON, or text. Repeatable.",
)  # fmt: skip
@click.option("-w", "--workspace-name", metavar="NAME", help="Put it into a workspace.")
@describes
def create(
    name: str,
    description: str,
    labels: tuple[str, ...],
    words: tuple[str, ...],
    workspace_name: str | None,
) -> Document:
    """Make a model: a name for checkpoints, which become its versions 1, 2, 3 ...

    \b
    Examples:
      detslurm model create resnet --description "18 layers" --metadata layers=18
    """
    from detslurm.cli.model.show import model_data

    made = client().create_model(name, description, pairs(words), labels, workspace_name)
    return Document(
        lambda: f"Created model {made.name} (id {made.model_id})", lambda: model_data(made)
    )


@click.command("register-version")
@model_name
@click.argument("uuid", shell_complete=completed_by("checkpoints"))
@click.option("--name", "version_name", default="", help="Set a name for the version.")
@click.option("--notes", default="", help="Set notes for its users.")
@describes
def register_version(name: str, uuid: str, version_name: str, notes: str) -> Document:
    """Make the checkpoint UUID the next version of a model.

    Nothing deletes a checkpoint while it is a version: no garbage collection, and no command. UUID
    may be its first characters, 4 or more.

    \b
    Examples:
      detslurm model register-version resnet 2f1c9a --notes "for the paper"
    """
    from detslurm.cli.model.show import version_data

    model = client().get_model(name)
    made = model.register_version(uuid, name=version_name, notes=notes)
    text = f"Registered checkpoint {made.row.uuid} as version {made.version} of model {model.name}"
    return Document(lambda: text, lambda: version_data(made))


@click.command("delete-version")
@model_name
@click.argument("version", type=click.IntRange(1), metavar="N")
@click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")
@describes
def delete_version(name: str, version: int, yes: bool) -> Document:
    """Delete version N of a model; the checkpoint's files stay, and may be deleted from then on."""
    model = client().get_model(name)
    found = model.get_version(version)
    assert found is not None
    confirm_deletion(f"Delete version {version} of model {model.name}?", yes)
    found.delete()
    text = f"Deleted version {version} of model {model.name}"
    return Document(lambda: text, lambda: {"model": model.name, "version": version})


@click.command()
@several_models
@click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")
@json_option
def delete(names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete models with all their versions; the checkpoints' files stay."""
    confirm_deletion(f"Delete {', '.join(names)} with all versions?", yes)
    _each(names, lambda one: one.delete(), "Deleted", as_json)


@click.command()
@model_name
@click.argument("workspace")
@describes
def move(name: str, workspace: str) -> Document:
    """Put a model into another workspace."""
    from detslurm.cli.model.show import model_data

    model = client().get_model(name)
    model.move_to_workspace(workspace)
    text = f"Moved model {model.name} to workspace {workspace}"
    return Document(lambda: text, lambda: model_data(model))


@click.command()
@several_models
@json_option
def archive(names: tuple[str, ...], as_json: bool) -> None:
    """Hide models from lists; `model list --all` shows them. Their versions stay as they are."""
    _each(names, lambda one: one.archive(), "Archived", as_json)


@click.command()
@several_models
@json_option
def unarchive(names: tuple[str, ...], as_json: bool) -> None:
    """Show archived models in lists again."""
    _each(names, lambda one: one.unarchive(), "Unarchived", as_json)
