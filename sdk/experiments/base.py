"""The base of every part of an `Experiment`: its state, its facts and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm.sdk.enums import ExperimentState
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.reconcile import attach_job_status
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot, Finished, read
from detslurm.sdk.jobs.status import JobRef, QueueSnapshot
from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    ExperimentRow,
    ExperimentView,
    fold_facts,
    refuse_newer,
)
from detslurm.store.records import Environment, Intent, Set

if TYPE_CHECKING:
    from detslurm.sdk.costs.budget import Budget
    from detslurm.sdk.jobs.queues import Queues
    from detslurm.sdk.submission.submit import Submission
    from detslurm.slurm import JobInfo


class ExperimentBase:
    """One experiment as it was when it was read last, and the way to its facts and jobs."""

    def __init__(
        self,
        queues: Queues,
        known: ExperimentSnapshot | Finished | ExperimentDir,
        submission: Submission | None = None,
    ) -> None:
        self._queues = queues
        self._directory = known if isinstance(known, ExperimentDir) else known.directory
        self._known = None if isinstance(known, ExperimentDir) else known
        self._submission = submission

    @property
    def submission(self) -> Submission:
        """The facts of its submission; `LifecycleError` if this object was found by its id."""
        if self._submission is None:
            raise LifecycleError("only the experiment that a submission returns has `submission`")
        return self._submission

    @property
    def _snapshot(self) -> ExperimentSnapshot:
        """All that is known of it, read when it is first needed."""
        if self._known is None:
            self._read_again()
        if not isinstance(self._known, ExperimentSnapshot):
            self._known = read(self._directory)
        return self._known

    def _read_again(self) -> None:
        self._known = read(self._directory)
        attach_job_status([self._known], self._queues)

    @property
    def view(self) -> ExperimentView:
        """Everything about it and its trials, as it was when it was read last."""
        return self._snapshot.view

    @property
    def row(self) -> ExperimentRow:
        """The experiment in short, as it was when it was read last."""
        return self._known.row if isinstance(self._known, Finished) else self.view

    @property
    def id(self) -> int:
        """The experiment's id."""
        return self._directory.id

    @property
    def path(self) -> Path:
        """The experiment's directory in the store."""
        return self._directory.path

    @property
    def state(self) -> ExperimentState:
        """The experiment's state, such as "ACTIVE" or "COMPLETED"."""
        return ExperimentState(self.row.state)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.row.name

    @property
    def description(self) -> str:
        """The experiment's description."""
        return self.row.description

    @property
    def notes(self) -> str:
        """The experiment's notes."""
        return self.row.notes

    @property
    def labels(self) -> set[str]:
        """The experiment's labels."""
        return set(self.row.labels)

    @property
    def owner(self) -> str:
        """The user who submitted it."""
        return self.row.owner

    @property
    def workspace(self) -> str:
        """The workspace that it is in."""
        return self.row.workspace

    @property
    def project(self) -> str:
        """The project in that workspace."""
        return self.row.project

    @property
    def archived(self) -> bool:
        """Whether lists leave it out."""
        return self.row.archived

    @property
    def progress(self) -> float:
        """The part of it that is done, from 0 to 1."""
        return self.row.progress

    @property
    def workers(self) -> Mapping[JobRef, JobInfo]:
        """The jobs of a search that wait or run, by reference; of other experiments none."""
        return self._snapshot.workers

    @property
    def managed(self) -> bool:
        """Whether detslurm submitted it; False for scripts and jobs that the user started."""
        return bool(self._snapshot.facts.created.managed)

    @property
    def imported(self) -> str | None:
        """Its origin at the site where it was bundled; None if it was submitted here."""
        return self._snapshot.facts.created.imported

    @property
    def environment(self) -> Environment | None:
        """The environment that nodes copy to their disks; None without slurm.stage_environment."""
        recorded = self._snapshot.facts.created.environment
        return recorded and recorded.in_store(self._snapshot.directory.store.path)

    @property
    def budget(self) -> Budget | None:
        """The experiment's budget and usage; None if it has no budget."""
        from detslurm.sdk.costs.budget import Budget

        return Budget.of(self._snapshot)

    def _intent(self, intent: str, **more: Any) -> None:
        self._refuse_others()
        self._snapshot.directory.append(Intent(intent=intent, **more))

    def _set(self, name: str, value: Any) -> None:
        self._refuse_others()
        self._snapshot.directory.append(Set(field=name, value=value))
        self._snapshot.refresh(())

    def _change(self, name: str, change: Callable[[ExperimentFacts], Any]) -> None:
        """Set a field to the result of `change` on its record, also while others change it."""
        self._refuse_others()
        directory, won = self._snapshot.directory, False
        while not won:
            facts = fold_facts(directory)
            won = directory.append_next(Set(field=name, value=change(facts)), facts.count)
        self._snapshot.refresh(())

    def _refuse_others(self) -> None:
        """Raise if another user, or a newer version, alone may change it."""
        if owner := self._snapshot.directory.foreign_owner():
            raise LifecycleError(f"experiment {self.id} belongs to {owner}, who alone may do that")
        refuse_newer(self._snapshot.directory.path, self._snapshot.facts.format)

    @property
    def _jobs_to_end(self) -> list[JobRef]:
        """The newest jobs of trials that have not ended, or were lost with theirs."""
        from detslurm.sdk.experiments.activation import lost_trials

        one = self._snapshot
        if one.facts.searching:
            return one.worker_jobs
        known, trials = one.job_refs, (*one.unfinished, *lost_trials(one))
        return [known[trial] for trial in trials if trial in known]

    def _unfinished_jobs(self) -> list[JobRef]:
        """Its jobs in the queue."""
        return self._own(self._jobs_to_end)

    def _own(self, job_refs: Sequence[JobRef]) -> list[JobRef]:
        """Those of these jobs that the queue has; not others that were given the same ids."""
        queue = self._queue_of(job_refs)
        for name in sorted(queue.unreachable):
            self._queues.warn(f"{name}'s queue is as it was; runners read the store every minute")
        return list(queue.jobs)

    def _queue_of(self, job_refs: Sequence[JobRef]) -> QueueSnapshot:
        """The queue's rows of these jobs, of those that are not over."""
        queue = self._queues.query((), queue_only=job_refs)
        own = self._snapshot.without_foreign_jobs(queue).jobs
        for job_ref in sorted(queue.jobs.keys() - own.keys()):
            self._queues.warn(
                f"job {job_ref.ref} is left alone: it is another job, to which {job_ref.cluster} "
                f"gave the same id; it works in {queue.jobs[job_ref].folder}"
            )
        found = {ref: own[ref] for ref in job_refs if ref in own and not own[ref].final}
        return queue._replace(jobs=found)
