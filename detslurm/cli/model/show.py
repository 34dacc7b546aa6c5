"""Commands that show models and their versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client
from detslurm.cli.checkpoint import listing
from detslurm.cli.experiment.description import properties
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import (
    Column,
    Document,
    Table,
    describes,
    local_time,
    shows,
)
from detslurm.cli.output.tables import columns_text
from detslurm.sdk.checkpoints.choosing import as_stored
from detslurm.sdk.enums import OrderBy
from detslurm.sdk.models.version import ModelVersion

if TYPE_CHECKING:
    from detslurm.sdk.models.model import Model
    from detslurm.sdk.models.version import ModelVersion

model_name = click.argument("name", metavar="NAME|ID", shell_complete=completed_by("models"))
_SORTS = ["id", "name", "description", "creation_time", "last_updated_time", "num_versions",
          "workspace"]  # fmt: skip

_COLUMNS = [
    Column("ID", lambda one: one.model_id),
    Column("Name", lambda one: one.name, least=12),
    Column("Versions", lambda one: len(one.row.versions)),
    Column("Labels", lambda one: ", ".join(one.labels), drop=2, least=8),
    Column("Owner", lambda one: one.username, drop=3, least=4),
    Column("Workspace", lambda one: one.workspace, drop=4),
    Column("Creation Time", lambda one: one.row.created, "time", drop=6),
    Column("Last Updated Time", lambda one: one.row.updated, "time", drop=1),
    Column("Metadata", lambda one: _json(one.metadata), drop=5, least=8),
]
_VERSION_COLUMNS = [
    Column("Version #", lambda one: one.version),
    Column("Name", lambda one: one.name, drop=3),
    Column("Trial ID", lambda one: one.row.trial, drop=1),
    Column("Batch", lambda one: one.row.steps, drop=2),
    Column("Checkpoint UUID", lambda one: one.row.uuid),
    Column("Created", lambda one: one.row.created, "time", drop=4),
    Column("Labels", lambda one: ", ".join(one.labels), drop=6, least=8),
    Column("Metadata", lambda one: _json(one.metadata), drop=5, least=8),
]


@click.command("list")
@click.option(
    "--sort-by", type=click.Choice(_SORTS), default="name", show_default=True, help="Sort by this."
)
@click.option(
    "--order-by", type=click.Choice(["asc", "desc"]), default="asc", show_default=True,
    help="Begin with the smallest, or with the greatest.",
)  # fmt: skip
@click.option("--name", metavar="TEXT", help="Show only models whose names contain TEXT.")
@click.option("--label", "labels", multiple=True, help="Show only models with LABEL. Repeatable.")
@click.option("-w", "--workspace-name", metavar="NAME", help="Show only models of a workspace.")
@click.option("--user", metavar="NAME", help="Show only models of a user.")
@click.option("--all", "-a", "archived", is_flag=True, help="Show archived models, too.")
@shows
def list_models(
    sort_by: str,
    order_by: str,
    name: str | None,
    labels: tuple[str, ...],
    workspace_name: str | None,
    user: str | None,
    archived: bool,
) -> Table:
    """List models.

    \b
    Examples:
      detslurm model list --label vision
      detslurm model list --sort-by last_updated_time --order-by desc
    """
    rows = client().list_models(
        sort_by.upper(),
        OrderBy.DESC if order_by == "desc" else OrderBy.ASC,
        name=name,
        labels=labels,
        workspace=workspace_name,
        user=user,
        archived=archived,
    )
    hidden = Column("Archived", lambda one: "yes" if one.archived else "")
    return Table(
        [*_COLUMNS, hidden] if archived else _COLUMNS,
        rows,
        lambda: [entry_data(one) for one in rows],
    )


@click.command("list-versions")
@model_name
@shows
def list_versions(name: str) -> Table:
    """List the versions of a model, the newest first."""
    rows = client().get_model(name).list_versions()
    return Table(_VERSION_COLUMNS, rows, lambda: [entry_data(one) for one in rows])


@click.command()
@model_name
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show version N alone.")
@describes
def describe(name: str, version: int | None) -> Document:
    """Show a model and its versions; or one version, with where its files are.

    \b
    Examples:
      detslurm model describe resnet
      detslurm model describe resnet --version 3 --json
    """
    if version is not None:
        return _version_document(version_of(name, version))
    model = client().get_model(name)
    versions = model.list_versions()
    data = entry_data(model)
    below = columns_text(_VERSION_COLUMNS, versions) if versions else "No versions."
    return Document(
        lambda: f"{_text(data)}\n\n{below}",
        lambda: {**data, "versions": [entry_data(each) for each in versions]},
    )


def _version_document(version: ModelVersion) -> Document:
    checkpoint = as_stored(client().store, [version.checkpoint])[0]
    data = {
        **entry_data(version),
        "location": checkpoint.location,
        "state": checkpoint.state,
        "problem": checkpoint.problem,
        "validation_metrics": checkpoint.validation_metrics,
        "used_by": checkpoint.used_by(version.model_name, version.version),
    }
    return Document(lambda: _text({**data, "state": listing.state(checkpoint)}), lambda: data)


def version_of(name: str, number: int) -> ModelVersion:
    """A version of a model; raises `NotFound`."""
    version = client().get_model(name).get_version(number)
    assert version is not None
    return version


def entry(name: str, version: int | None) -> Model | ModelVersion:
    """A model, or a version of it; raises `NotFound`."""
    return client().get_model(name) if version is None else version_of(name, version)


def title(found: Model | ModelVersion) -> str:
    """A model or a version in a sentence."""
    if isinstance(found, ModelVersion):
        return f"version {found.version} of model {found.model_name}"
    return f"model {found.name}"


def entry_data(found: Model | ModelVersion) -> dict[str, Any]:
    """A model or a version for JSON."""
    shared = {
        "name": found.name,
        "notes": found.notes,
        "labels": found.labels,
        "metadata": found.metadata,
        "username": found.username,
        "created": found.row.created,
    }
    if isinstance(found, ModelVersion):
        return {
            "model": found.model_name,
            "version": found.version,
            **shared,
            "checkpoint_uuid": found.row.uuid,
            "experiment": found.row.experiment,
            "trial": found.row.trial,
            "steps": found.row.steps,
        }
    return {
        "id": found.model_id,
        "description": found.description,
        **shared,
        "workspace": found.workspace,
        "archived": found.archived,
        "updated": found.row.updated,
        "num_versions": len(found.row.versions),
    }


def _text(data: dict[str, Any]) -> str:
    """A line for each value that is not empty."""
    return properties(
        (key.capitalize().replace("_", " "), _shown(key, value)) for key, value in data.items()
    )


def _shown(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return _json(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if key in ("created", "updated"):
        return local_time(value)
    return str(value) if value not in (None, False) else ""


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value) if value else ""
