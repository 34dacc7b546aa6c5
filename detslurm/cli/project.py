"""`detslurm workspace` and `detslurm project`: the folders that experiments are kept in.

A workspace or a project is there while an experiment is in it, so `create` only checks the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import click

from detslurm.cli.arguments.ids import client
from detslurm.cli.experiment.list import chosen, list_options
from detslurm.cli.output.printing import Column, Document, Table, describes, note, shows
from detslurm.sdk.parts import ExperimentRow, NotFound
from detslurm.sdk.workspaces import Project, Workspace


class Folder(NamedTuple):
    """A workspace, or a project in it, and what it holds."""

    workspace: str
    project: str
    projects: int
    experiments: int
    active: int
    newest: float | None


_WORKSPACE = Column("Workspace", lambda one: one.workspace, least=12)
_PROJECT = Column("Project", lambda one: one.project, least=12)
_PROJECTS = Column("# of Projects", lambda one: one.projects, drop=3)
_COUNTS = [
    Column("# of Experiments", lambda one: one.experiments, drop=1),
    Column("# Active", lambda one: one.active, drop=2),
    Column("Newest", lambda one: one.newest, "time", drop=4),
]


@click.group()
def workspace() -> None:
    """See workspaces; `submit --project WORKSPACE/PROJECT` makes one."""


@click.group()
def project() -> None:
    """See projects and their experiments; `submit --project WORKSPACE/PROJECT` makes one."""


@workspace.command("list")
@shows
def list_workspaces() -> Table:
    """List the workspaces that have experiments.

    \b
    Examples:
      detslurm workspace list
      detslurm workspace list --json
    """
    found = [_folder(rows, name, "") for name, rows in _grouped(_rows(), lambda row: row.workspace)]
    return Table([_WORKSPACE, _PROJECTS, *_COUNTS], found, lambda: _data(found, ("project",)))


@workspace.command("list-projects")
@click.argument("name")
@shows
def list_projects(name: str) -> Table:
    """List the projects in the workspace NAME."""
    return _projects(name)


workspace.add_command(list_projects, "describe")


@workspace.command("create")
@click.argument("name")
@describes
def create_workspace(name: str) -> Document:
    """Check that NAME can be a workspace; its first experiment makes it.

    \b
    Examples:
      detslurm workspace create vision
    """
    return _made("workspace", Workspace(client(), name).name, f"{name}/PROJECT")


@project.command("describe")
@click.argument("workspace")
@click.argument("project_name", metavar="PROJECT")
@shows
def describe_project(workspace: str, project_name: str) -> Table:
    """Show what a project holds.

    \b
    Examples:
      detslurm project describe vision digits
    """
    return _projects(workspace, project_name)


@project.command("create")
@click.argument("workspace")
@click.argument("project_name", metavar="PROJECT")
@describes
def create_project(workspace: str, project_name: str) -> Document:
    """Check that NAME can be a project of WORKSPACE; its first experiment makes it.

    \b
    Examples:
      detslurm project create vision digits
    """
    path = Project(client(), workspace, project_name).id
    return _made("project", path, path)


@project.command("list")
@click.argument("workspace", required=False)
@shows
def list_all_projects(workspace: str | None) -> Table:
    """List all projects, or those in WORKSPACE.

    \b
    Examples:
      detslurm project list
      detslurm project list vision
    """
    return _projects(workspace)


@project.command("list-experiments")
@click.argument("workspace")
@click.argument("project_name", metavar="PROJECT")
@list_options
@shows
def list_experiments(workspace: str, project_name: str, **options: Any) -> Table:
    """List the experiments in a project, as `experiment list` does.

    \b
    Examples:
      detslurm project list-experiments vision digits --sort best
    """
    options |= {"workspaces": (workspace,), "projects": (project_name,)}
    return chosen(**options)


def _made(kind: str, name: str, path: str) -> Document:
    def text() -> str:
        note(f"The first `detslurm submit --project {path}` makes the {kind}.")
        return f"Nothing to create: {name} is free to use"

    return Document(text, lambda: {kind: name})


def _projects(workspace: str | None, project: str | None = None) -> Table:
    rows = [row for row in _rows() if workspace is None or row.workspace == workspace]
    if workspace is not None and not rows:
        raise NotFound(f"no experiment is in a workspace {workspace!r}")
    if project is not None:
        rows = [row for row in rows if row.project == project]
        if not rows:
            raise NotFound(f"no experiment is in a project {workspace}/{project}")
    found = [
        _folder(group, names[0], names[1])
        for names, group in _grouped(rows, lambda row: (row.workspace, row.project))
    ]
    return Table([_WORKSPACE, _PROJECT, *_COUNTS], found, lambda: _data(found, ("projects",)))


def _rows() -> list[ExperimentRow]:
    return client().rows(archived=True)


def _grouped(rows: Iterable[ExperimentRow], key: Any) -> list[tuple[Any, list[ExperimentRow]]]:
    groups: dict[Any, list[ExperimentRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted(groups.items())


def _folder(rows: list[ExperimentRow], workspace: str, project: str) -> Folder:
    return Folder(
        workspace=workspace,
        project=project,
        projects=len({row.project for row in rows}),
        experiments=len(rows),
        active=sum(not row.finished for row in rows),
        newest=max((row.created for row in rows if row.created is not None), default=None),
    )


def _data(found: list[Folder], without: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in one._asdict().items() if name not in without}
        for one in found
    ]
