"""The parts of `Client` that list and change the jobs of a queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from detslurm.sdk.jobs.explaining import ExplainingJobs

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.jobs.job import Job, JobKind
    from detslurm.sdk.jobs.order import JobPlace
    from detslurm.sdk.jobs.queues import Queues
    from detslurm.sdk.jobs.resource_pool import ResourcePool
    from detslurm.sdk.jobs.slots import NodeSlots
    from detslurm.sdk.jobs.update import QueueUpdate
    from detslurm.slurm import NodeInfo
    from detslurm.store import Store


class FindingJobs(ExplainingJobs):
    """Finds jobs, one's own and those of others, with one query of the queue."""

    store: Store
    queues: Queues
    warn: Callable[[str], None]

    def list_jobs(self, resource_pool: str | None = None, *, cluster: str = "auto") -> list[Job]:
        """Return the jobs that run, by their start, and those that wait, in scheduling order.

        The site decides whether jobs of other users are among them. Elements of an array that are
        in the same condition are one job. With a `resource_pool` (none by default) only jobs of
        this partition, or `NotFound`.
        """
        from detslurm.sdk.jobs.job import JobList, jobs_of
        from detslurm.sdk.jobs.owner import JobOwners
        from detslurm.sdk.jobs.resource_pool import check_pool
        from detslurm.slurm.queue_listing import scheduling_order

        where = self.queues.cluster(cluster)
        rows = self.queues.listing(cluster, resource_pool)
        if resource_pool is not None and not rows:  # Slurm takes any name, and has no jobs there
            check_pool(where, resource_pool)
        waits_in = {name for row in rows if row.waiting for name in row.partitions}
        # Where all wait in one partition its tier does not matter, and need not be asked for.
        partitions = where.limits().partitions if len(waits_in) > 1 else {}
        ordered = scheduling_order(rows, partitions)
        owners = JobOwners(self.store)
        return JobList(jobs_of(where.name, ordered, owners, explain=self.explain_job))

    def find_jobs(
        self, name: str | int, *, cluster: str = "auto", kind: JobKind = "any"
    ) -> list[Job]:
        """Return the jobs in the queue that a name stands for, those that run first.

        Elements of an array that are in different conditions are several jobs.

        Args:
            name: Slurm's id of a job or an array, such as "4711", of elements, such as "4711_3" or
                "4711_[3-9]", or the id of an experiment, its name or `last`.
            kind: "experiment" or "job" where the name may be both; by default the experiment is
                meant if it has jobs in the queue, and a warning names the other meaning.

        Raises:
            NotFound: If there are none; the error has the job's end, as far as known.
            ValueError: If it is no such name.
        """
        from detslurm.sdk.jobs.job import JobList, named

        known, kind = self._meaning(name, kind)
        jobs = self.list_jobs(cluster=cluster)
        found = named(jobs, known, kind)
        self._check_found(found, jobs, known, self.queues.cluster(cluster), kind)
        return JobList(found)

    def job(self, name: str | int, *, cluster: str = "auto", kind: JobKind = "any") -> Job:
        """Return the first of `find_jobs` that waits, else the first, with arguments and errors as
        in `find_jobs`."""
        found = self.find_jobs(name, cluster=cluster, kind=kind)
        return next((job for job in found if job.waiting), found[0])

    def resource_pools(self, *, cluster: str = "auto") -> list[ResourcePool]:
        """Return the partitions of a cluster, the default one first, with their free resources.
        Where the cluster does not show its nodes, there is a warning."""
        from detslurm.sdk.jobs.resource_pool import pools_of

        return pools_of(self.queues.cluster(cluster), self.warn)

    def agents(self, resource_pool: str | None = None, *, cluster: str = "auto") -> list[NodeInfo]:
        """Return the nodes of a cluster, with their state and usage; `SlurmError` if it does not
        show them. With a `resource_pool` (none by default) only nodes of this partition, or
        `NotFound`."""
        from detslurm.sdk.jobs.resource_pool import check_pool

        where = self.queues.cluster(cluster)
        nodes = where.nodes()
        if resource_pool is None:
            return nodes
        found = [node for node in nodes if resource_pool in node.partitions]
        if not found:
            check_pool(where, resource_pool)
        return found

    def slots(self, resource_pool: str | None = None, *, cluster: str = "auto") -> list[NodeSlots]:
        """Return the slots of a cluster by node and state, with the jobs that use them; arguments
        and errors are as in `agents`."""
        from detslurm.sdk.jobs.slots import slots_of

        nodes = self.agents(resource_pool, cluster=cluster)
        return slots_of(nodes, self.queues.listing(cluster))


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
        """Change a job that waits (its priority, its partition, its place among one's own jobs),
        and return where it stands now; None if it has started meanwhile.

        Of a job of an experiment, priority, weight, partition, QOS and slots are those of the
        experiment: all its jobs have them, and those that it submits later. An order holds for the
        jobs that are in the queue now. It is a `LifecycleError` if nothing is to be changed, or the
        job can't be changed so: it does not wait, belongs to another user, or the site refuses.

        Args:
            job_id: The job, or an array, whose waiting elements are meant.
            priority: From 1 (first) to 99 (last) among the user's own jobs; unchanged by default.
            weight: The same as a fair share's weight; unchanged by default.
            resource_pool: The partition to wait in; unchanged by default.
            qos: The quality of service; unchanged by default.
            max_slots: How many slots the experiment may hold at once; unchanged by default.
            ahead_of: Another of the user's jobs, before which it is to start; none by default.
            behind_of: Another of the user's jobs, after which it is to start; none by default.
        """
        from detslurm.sdk.jobs.update import changes_of

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
        """Return several changes of the queue of a cluster, which is asked once after each."""
        from detslurm.sdk.jobs.update import QueueUpdate

        return QueueUpdate(
            self.queues.cluster(cluster),
            lambda: self.list_jobs(cluster=cluster),
            self.experiment,
        )
