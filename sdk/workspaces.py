"""Workspaces and projects as Determined's scripts know them: names that experiments carry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from detslurm.sdk import settings
from detslurm.sdk.errors import LifecycleError
from detslurm.store import UNCATEGORIZED, NotFound

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.store import ExperimentRow


class Project:
    """A project: its first experiment makes it, and it ends with its last.

    `id` is `WORKSPACE/PROJECT`, which `create_experiment(project_id=...)` takes.

    Args:
        client: The client of the store.
        workspace: The name of its workspace, one line of printable text without a slash; other
            names are a `LifecycleError`.
        name: Its name, the same.
    """

    def __init__(self, client: Client, workspace: str, name: str) -> None:
        self._client = client
        self.workspace = settings.folder("a workspace", workspace)
        self.name = settings.folder("a project", name)
        self.id = f"{workspace}/{name}"

    def __repr__(self) -> str:
        return f"Project({self.id!r})"

    @property
    def n_experiments(self) -> int:
        """How many experiments are in it now, archived ones too."""
        return len(self.rows())

    @property
    def n_active_experiments(self) -> int:
        """How many of its experiments have not ended."""
        return sum(not row.finished for row in self.rows())

    def list_experiments(self) -> list[Experiment]:
        """Return its experiments, archived ones too, in the order of their ids."""
        return [self._client.experiment(row.id) for row in self.rows()]

    def rows(self) -> list[ExperimentRow]:
        """Return its experiments as rows, by id, archived ones too."""
        rows = self._client.rows(archived=True)
        return [row for row in rows if (row.workspace, row.project) == (self.workspace, self.name)]


class Workspace:
    """A workspace: the first experiment in any of its projects makes it. It is that of a `client`;
    its `name`, as for `Project`, is its `id`, too."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.id = self.name = settings.folder("a workspace", name)

    def __repr__(self) -> str:
        return f"Workspace({self.name!r})"

    def list_projects(self) -> list[Project]:
        """Return the projects that have experiments, by name."""
        rows = self._client.rows(archived=True)
        names = {row.project for row in rows if row.workspace == self.name}
        return [Project(self._client, self.name, name) for name in sorted(names)]

    def get_project(self, project_name: str) -> Project:
        """Return the project `project_name`. Raises `NotFound` if it has no experiments."""
        for project in self.list_projects():
            if project.name == project_name:
                return project
        raise NotFound(f"no experiment is in a project {self.name}/{project_name}")

    def create_project(self, name: str, description: str | None = None) -> Project:
        """Return the project `name` to put experiments into; the first experiment makes it. The
        `description` has no effect (None by default)."""
        return Project(self._client, self.name, name)

    def delete_project(self, name: str) -> None:
        """Do nothing for the empty project `name`; with experiments it is a `LifecycleError`."""
        project = self.create_project(name)
        refuse_used(project.id, project.rows())


def project_overrides(text: str) -> list[str]:
    """`PROJECT` or `WORKSPACE/PROJECT` as overrides of a configuration; else `ValueError`."""
    workspace, slash, project = text.rpartition("/")
    if (slash and not workspace) or not project or "/" in workspace:
        raise ValueError(f"{text!r} is not PROJECT or WORKSPACE/PROJECT")
    chosen = {"workspace": workspace or UNCATEGORIZED, "project": project}
    return [f"{key}={json.dumps(value)}" for key, value in chosen.items()]


def refuse_used(folder: str, rows: Sequence[ExperimentRow]) -> None:
    """Raise `LifecycleError` if a workspace or project that is to be deleted has experiments."""
    if rows:
        ids = ", ".join(str(row.id) for row in rows[:5]) + ("" if len(rows) <= 5 else " ...")
        raise LifecycleError(
            f"{folder} still has experiments ({ids}): move or delete them, and it is gone"
        )
