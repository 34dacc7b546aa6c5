"""The part of `Client` that changes the queue."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.jobs.finding import FindingJobs

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.jobs.changes import JobChange
    from detslurm.sdk.jobs.place import JobPlace
    from detslurm.sdk.jobs.update import QueueUpdate


class UpdatingJobs(FindingJobs):
    """Changes jobs that wait in the queue."""

    @abstractmethod
    def experiment(self, experiment_id: int) -> Experiment: ...

    def update_job(
        self,
        job_id: str | int,
        *,
        priority: int | None = None,
        weight: float | None = None,
        resource_pool: str | None = None,
        qos: str | None = None,
        max_slots: int | None = None,
        ahead_of: str | int | None = None,
        behind_of: str | int | None = None,
        cluster: str = "auto",
    ) -> JobPlace | None:
        """Change a job that waits: its priority, its partition, its place among one's own jobs.

        Of a job of an experiment, priority, weight, partition, QOS and slots are those of the
        experiment: all its jobs have them, and those that it submits later. An order holds for the
        jobs that are in the queue now.

        Args:
            job_id: The job, or an array, whose waiting elements are meant.
            priority: From 1 (first) to 99 (last) among the user's own jobs; unchanged by default.
            weight: The same as a fair share's weight; unchanged by default.
            resource_pool: The partition to wait in; unchanged by default.
            qos: The quality of service; unchanged by default.
            max_slots: How many slots the experiment may hold at once; unchanged by default.
            ahead_of: Another of the user's jobs, before which it is to start; none by default.
            behind_of: Another of the user's jobs, after which it is to start; none by default.
            cluster: "slurm", "local", or "auto" for Slurm where it is set up; "auto" by default.

        Returns:
            Where the job stands now; None if it has started meanwhile.

        Raises:
            LifecycleError: If nothing is to be changed, or the job can't be changed so: it does not
                wait, belongs to another user, or the site refuses.
            SlurmError: If the cluster does not answer.
        """
        given = {
            "priority": priority, "weight": weight, "resource-pool": resource_pool, "qos": qos,
            "max-slots": max_slots, "ahead-of": ahead_of, "behind-of": behind_of,
        }  # fmt: skip
        changes = changes_of(str(job_id), {n: str(v) for n, v in given.items() if v is not None})
        queue = self.queue_update(cluster)
        queue.check(changes)
        for change in changes:
            queue.make(change)
        return queue.place(changes[0].job_id)

    def queue_update(self, cluster: str = "auto") -> QueueUpdate:
        """Several changes of one queue, which is asked once after each.

        Args:
            cluster: "slurm", "local", or "auto" for Slurm where it is set up; "auto" by default.

        Returns:
            The changes.

        Raises:
            SlurmError: If the cluster does not answer.
        """
        from detslurm.sdk.jobs.update import QueueUpdate

        return QueueUpdate(
            self.queues.cluster(cluster),
            lambda: self.list_jobs(cluster=cluster),
            self.experiment,
        )


def changes_of(job_id: str, given: dict[str, str]) -> list[JobChange]:
    """Changes of one job by name. Raises LifecycleError for a faulty change."""
    from detslurm.sdk.jobs.changes import conflicts, job_change

    try:
        found = [job_change(job_id, name, value) for name, value in given.items()]
    except ValueError as error:
        raise LifecycleError(str(error)) from None
    if not found:
        raise LifecycleError(f"nothing is to be changed of job {job_id}")
    if wrong := conflicts(found):
        raise LifecycleError("\n".join(wrong))
    return found
