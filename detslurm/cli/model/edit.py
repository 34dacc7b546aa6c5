"""Commands that change the texts of a model or of one of its versions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from detslurm.cli.arguments.ids import client
from detslurm.cli.model.arguments import model_name, of_version, pairs
from detslurm.cli.output.printing import Document, describes


def _change(name: str, version: int | None, act: Callable[[Any], None], what: str) -> Document:
    """Change a model, or its version."""
    from detslurm.cli.model.show import model_data, version_data

    model = client().get_model(name)
    if version is None:
        act(model)
        return Document(lambda: f"{what} model {model.name}", lambda: model_data(model))
    found = model.get_version(version)
    assert found is not None
    act(found)
    text = f"{what} version {version} of model {model.name}"
    return Document(lambda: text, lambda: version_data(found))


@click.group("set")
def set_group() -> None:
    """Change the name, the description or the notes of a model, or of one of its versions.

    \b
    Examples:
      detslurm model set name resnet resnet-18
      detslurm model set notes resnet "beats the baseline" --version 3
    """


@set_group.command("name")
@model_name
@click.argument("value")
@of_version
@describes
def set_name(name: str, value: str, version: int | None) -> Document:
    """Rename a model, or name a version."""
    return _change(name, version, lambda one: one.set_name(value), "Set `name` of")


@set_group.command("description")
@model_name
@click.argument("value")
@describes
def set_description(name: str, value: str) -> Document:
    """Replace the description of a model."""
    return _change(name, None, lambda one: one.set_description(value), "Set `description` of")


@set_group.command("notes")
@model_name
@click.argument("value")
@of_version
@describes
def set_notes(name: str, value: str, version: int | None) -> Document:
    """Replace the notes of a model or of a version."""
    return _change(name, version, lambda one: one.set_notes(value), "Set `notes` of")


@click.group()
def label() -> None:
    """Add or remove labels of a model, or of one of its versions."""


@label.command("add")
@model_name
@click.argument("labels", nargs=-1, required=True)
@of_version
@describes
def add_labels(name: str, labels: tuple[str, ...], version: int | None) -> Document:
    """Add labels."""
    return _change(name, version, lambda one: one.add_labels(labels), "Added labels to")


@label.command("remove")
@model_name
@click.argument("labels", nargs=-1, required=True)
@of_version
@describes
def remove_labels(name: str, labels: tuple[str, ...], version: int | None) -> Document:
    """Remove labels; those that it does not have are ignored."""
    return _change(name, version, lambda one: one.remove_labels(labels), "Removed labels of")


@click.group()
def metadata() -> None:
    """Set or remove metadata of a model, or of one of its versions."""


@metadata.command("set")
@model_name
@click.argument("words", metavar="KEY=VALUE...", nargs=-1, required=True)
@of_version
@describes
def set_metadata(name: str, words: tuple[str, ...], version: int | None) -> Document:
    """Set metadata: VALUE is JSON, or text.

    \b
    Examples:
      detslurm model metadata set resnet layers=18 'classes=["cat", "dog"]'
      detslurm model metadata set resnet paper=accepted --version 3
    """
    given = pairs(words)
    return _change(name, version, lambda one: one.add_metadata(given), "Set metadata of")


@metadata.command("remove")
@model_name
@click.argument("keys", nargs=-1, required=True)
@of_version
@describes
def remove_metadata(name: str, keys: tuple[str, ...], version: int | None) -> Document:
    """Remove metadata; what it does not have is ignored."""
    return _change(name, version, lambda one: one.remove_metadata(keys), "Removed metadata of")
