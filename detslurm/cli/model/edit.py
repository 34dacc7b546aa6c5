"""Commands that make, register, change, hide and delete models and their versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from detslurm.cli.arguments.ids import client, report_each
from detslurm.cli.arguments.pairs import data_of
from detslurm.cli.lazy import completed_by
from detslurm.cli.model.show import entry, entry_data, model_name, title, version_of
from detslurm.cli.output.printing import Document, confirm_deletion, describes, json_option

if TYPE_CHECKING:
    from detslurm.sdk.models.model import Model
    from detslurm.sdk.models.version import ModelVersion

_several_models = click.argument(
    "names",
    metavar="NAME|ID...",
    nargs=-1,
    required=True,
    shell_complete=completed_by("models"),
)
_of_version = click.option(
    "--version", type=click.IntRange(1), metavar="N", help="Change version N of the model."
)
_yes = click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")


@click.command()
@click.argument("name")
@click.option("--description", default="", help="Set the description.")
@click.option("--label", "labels", multiple=True, help="Set LABEL. Repeatable.")
@click.option(
    "--metadata", "pairs", multiple=True, metavar="KEY=VALUE",
    help="Set metadata: VALUE is YAML. Repeatable.",
)  # fmt: skip
@click.option("-w", "--workspace-name", metavar="NAME", help="Put it into a workspace.")
@describes
def create(
    name: str,
    description: str,
    labels: tuple[str, ...],
    pairs: tuple[str, ...],
    workspace_name: str | None,
) -> Document:
    """Make a model: a name for checkpoints, which become its versions 1, 2, 3 ...

    \b
    Examples:
      detslurm model create resnet --description "18 layers" --metadata layers=18
    """
    made = client().create_model(name, description, data_of(pairs), labels, workspace_name)
    return _done(f"Created model {made.name} (id {made.model_id})", made)


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
    model = client().get_model(name)
    made = model.register_version(uuid, name=version_name, notes=notes)
    return _done(f"Registered checkpoint {made.row.uuid} as {title(made)}", made)


@click.command("delete-version")
@model_name
@click.argument("version", type=click.IntRange(1), metavar="N")
@_yes
@describes
def delete_version(name: str, version: int, yes: bool) -> Document:
    """Delete version N of a model; the checkpoint's files stay, and may be deleted from then on."""
    found = version_of(name, version)
    confirm_deletion(f"Delete {title(found)}?", yes)
    found.delete()
    data = {"model": found.model_name, "version": version}
    return Document(lambda: f"Deleted {title(found)}", lambda: data)


@click.command()
@_several_models
@_yes
@json_option
def delete(names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete models with all their versions; the checkpoints' files stay."""
    confirm_deletion(f"Delete {', '.join(names)} with all versions?", yes)
    _each(names, lambda model: model.delete(), "Deleted", as_json)


@click.command()
@_several_models
@json_option
def archive(names: tuple[str, ...], as_json: bool) -> None:
    """Hide models from lists; `model list --all` shows them. Their versions stay as they are."""
    _each(names, lambda model: model.archive(), "Archived", as_json)


@click.command()
@_several_models
@json_option
def unarchive(names: tuple[str, ...], as_json: bool) -> None:
    """Show archived models in lists again."""
    _each(names, lambda model: model.unarchive(), "Unarchived", as_json)


def _each(names: tuple[str, ...], do: Callable[[Model], object], done: str, as_json: bool) -> None:
    registry = client()

    def act(name: str) -> str:
        model = registry.get_model(name)
        do(model)
        return f"{done} {title(model)}"

    report_each("model", dict.fromkeys(names), act, as_json=as_json)


@click.command()
@model_name
@click.argument("workspace")
@describes
def move(name: str, workspace: str) -> Document:
    """Put a model into another workspace."""
    model = client().get_model(name)
    model.move_to_workspace(workspace)
    return _done(f"Moved {title(model)} to workspace {workspace}", model)


@click.command("set")
@click.argument("field", metavar="FIELD", type=click.Choice(["name", "description", "notes"]))
@model_name
@click.argument("value")
@_of_version
@describes
def set_field(field: str, name: str, value: str, version: int | None) -> Document:
    """Change the name, the description or the notes of a model, or of one of its versions.

    FIELD is `name`, `notes` or, of a model alone, `description`.

    \b
    Examples:
      detslurm model set name resnet resnet-18
      detslurm model set notes resnet "beats the baseline" --version 3
    """
    if field == "description" and version is not None:
        raise click.UsageError("a version has no description: set its notes")
    found = entry(name, version)
    getattr(found, f"set_{field}")(value)
    return _done(f"Set `{field}` of {title(found)}", found)


@click.command()
@click.argument("action", metavar="add|remove", type=click.Choice(["add", "remove"]))
@model_name
@click.argument("labels", metavar="LABELS...", nargs=-1, required=True)
@_of_version
@describes
def label(action: str, name: str, labels: tuple[str, ...], version: int | None) -> Document:
    """Add labels to a model, or to one of its versions, or remove them.

    \b
    Examples:
      detslurm model label add resnet vision
    """
    found = entry(name, version)
    if action == "add":
        found.add_labels(labels)
        return _done(f"Added labels to {title(found)}", found)
    found.remove_labels(labels)
    return _done(f"Removed labels of {title(found)}", found)


@click.command()
@click.argument("action", metavar="set|remove", type=click.Choice(["set", "remove"]))
@model_name
@click.argument("values", metavar="KEY[=VALUE]...", nargs=-1, required=True)
@_of_version
@describes
def metadata(action: str, name: str, values: tuple[str, ...], version: int | None) -> Document:
    """Set metadata of a model, or of one of its versions, or remove them by their keys.

    VALUE is YAML.

    \b
    Examples:
      detslurm model metadata set resnet layers=18 'classes=["cat", "dog"]'
      detslurm model metadata set resnet paper=accepted --version 3
      detslurm model metadata remove resnet layers
    """
    found = entry(name, version)
    if action == "set":
        found.add_metadata(data_of(values))
        return _done(f"Set metadata of {title(found)}", found)
    found.remove_metadata(values)
    return _done(f"Removed metadata of {title(found)}", found)


def _done(text: str, found: Model | ModelVersion) -> Document:
    return Document(lambda: text, lambda: entry_data(found))
