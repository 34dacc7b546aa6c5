"""Choosing experiments out of a list. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable
from typing import NamedTuple

from detslurm.store import ExperimentRow


class ExperimentQuery(NamedTuple):
    """The conditions of a list of experiments; an empty condition matches all.

    Attributes:
        states: Any of these states.
        labels: All of these labels.
        names: Any of these names or globs.
        users: Any of these owners.
        workspaces: Any of these workspaces or globs.
        projects: Any of these projects or globs; `WORKSPACE/PROJECT` is one of that workspace.
        types: Any of these kinds: "experiment", or a kind of task.
    """

    states: Collection[str] = ()
    labels: Collection[str] = ()
    names: Collection[str] = ()
    users: Collection[str] = ()
    workspaces: Collection[str] = ()
    projects: Collection[str] = ()
    types: Collection[str] = ()

    def matches(self, row: ExperimentRow) -> bool:
        """Whether an experiment is wanted."""
        return (
            (not self.types or (row.task or "experiment") in self.types)
            and (not self.states or row.state in self.states)
            and {*self.labels} <= {*row.labels}
            and (not self.users or row.owner in self.users)
            and _any(row.name, self.names)
            and _any(row.workspace, self.workspaces)
            and _any(row.project, self.projects, f"{row.workspace}/{row.project}")
        )

    def chosen(self, rows: Iterable[ExperimentRow]) -> list[ExperimentRow]:
        """Return the matching rows, in the same order."""
        return [row for row in rows if self.matches(row)]


def _any(text: str, patterns: Collection[str], path: str = "") -> bool:
    """Whether a pattern matches the text, or one with a slash the path."""
    tried = ((p, one) for p in patterns for one in ((text, path) if "/" in p else (text,)))
    return not patterns or any(one == p or fnmatch.fnmatchcase(one, p) for p, one in tried)
