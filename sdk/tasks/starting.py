"""The part of `Client` that starts, finds and lists tasks."""

from __future__ import annotations

import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from detslurm.sdk.submitting import Submitting
from detslurm.store import NotFound

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.tasks.document import TaskDocument
    from detslurm.sdk.tasks.task import Task
    from detslurm.store import ExperimentRow


class Tasks(Submitting):
    """Starts programs as jobs, and finds them again."""

    @abstractmethod
    def experiment(self, experiment_id: int | str) -> Experiment: ...

    @abstractmethod
    def newest_rows(
        self, *, archived: bool = False, count: int | None = None
    ) -> Iterator[ExperimentRow]: ...

    def start_task(
        self,
        document: TaskDocument,
        entrypoint: str | Sequence[str],
        context_dir: os.PathLike[str] | str | None = None,
        *,
        includes: Sequence[os.PathLike[str] | str] = (),
        template: str | os.PathLike[str] | None = None,
        cluster: str = "auto",
    ) -> Task:
        """Queue a program as a job, and return the task.

        `document` is what `detslurm.sdk.tasks.document.read_document` returns, and `entrypoint` the
        program: words, or text for the shell. It runs in a copy of `context_dir` and `includes`. By
        default nothing is copied, and it runs in the document's `work_dir`, or in an empty
        directory. A `template` by name or path (by default none) is merged below the document.
        `cluster` is as in `submit`, by default `auto`.

        Raises:
            ConfigErrors, SubmitError, StoreError: As `submit`.

        Example:
            from detslurm.sdk import Client
            from detslurm.sdk.tasks.document import read_document

            document = read_document("command", overrides=["slurm.slot_type=cpu"])
            task = Client().start_task(document, ["hostname"])
            print(task.id, task.state)
        """
        from detslurm.sdk.tasks.document import experiment_config
        from detslurm.sdk.tasks.task import Task

        with tempfile.TemporaryDirectory() as nothing:
            plan = self.plan(
                experiment_config(document, entrypoint),
                nothing if context_dir is None else context_dir,
                includes=includes,
                template=template,
                cluster=cluster,
            )
            return Task(self.submit(replace(plan, task=document.kind)))

    def task(self, task_id: int | str, kind: str | None = None) -> Task:
        """Return a task as it is now, by the store and the queue; `NotFound` if the experiment
        `task_id` is none, or not of this `kind` (by default any)."""
        from detslurm.sdk.experiments.finding import experiment_of
        from detslurm.sdk.tasks.task import Task

        found = Task(self.experiment(experiment_of(self, task_id, kind)))  # type: ignore[arg-type]
        check_kind(found.id, found.experiment.row.task, kind)
        return found

    def task_rows(self, kind: str, *, archived: bool = False) -> list[ExperimentRow]:
        """Return the rows of the tasks of a `kind`, by id; `archived` ones are included on request
        (not by default)."""
        rows = [row for row in self.newest_rows(archived=archived) if row.task == kind]
        return rows[::-1]


def check_kind(task_id: int, found: str | None, wanted: str | None) -> None:
    """Raise `NotFound` unless a task is of the wanted kind; None takes any task."""
    if found is None:
        raise NotFound(f"{task_id} is an experiment, not a {wanted or 'task'}")
    if wanted is not None and found != wanted:
        raise NotFound(f"{task_id} is a {found}, not a {wanted}")
