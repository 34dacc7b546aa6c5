"""The part of `Client` that lists, explains and changes the jobs of a queue.

Methods import the modules that do their work: lists and the queue load few of them (tests/perf).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from detslurm.store import NotFound, StoreError

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.jobs.job import Job, JobKind
    from detslurm.sdk.jobs.order import QueuePlace
    from detslurm.sdk.jobs.queues import Queues
    from detslurm.sdk.jobs.resource_pool import ResourcePool
    from detslurm.sdk.jobs.slots import NodeSlots
    from detslurm.sdk.jobs.update import QueueUpdate
    from detslurm.sdk.waiting.explanation import Explanation
    from detslurm.slurm import Cluster, NodeInfo
    from detslurm.store import Store

_NAME = re.compile(r"\d+(_(\d+|\[[\d,:-]+\]))?", re.ASCII)


class ClientQueue:
    """Finds jobs, one's own and those of others, explains their waits, and changes one's own."""

    store: Store
    queues: Queues
    warn: Callable[[str], None]

    @abstractmethod
    def _experiment_id(self, word: int | str) -> int: ...

    @abstractmethod
    def experiment(self, experiment_id: int) -> Experiment: ...

    def list_jobs(self, resource_pool: str | None = None, *, cluster: str = "auto") -> list[Job]:
        """Return the jobs that run, by their start, and those that wait, in scheduling order.

        The site decides whether jobs of other users are among them. Elements of an array that are
        in the same condition are one job. With a `resource_pool` (none by default) only jobs of
        this partition, or `NotFound`.
        """
        from detslurm.sdk.jobs.job import JobList, jobs_of
        from detslurm.sdk.jobs.resource_pool import check_pool
        from detslurm.slurm import scheduling_order

        where = self.queues.cluster(cluster)
        rows = self.queues.listing(cluster, resource_pool)
        if resource_pool is not None and not rows:  # Slurm takes any name, and has no jobs there
            check_pool(where, resource_pool)
        waits_in = {name for row in rows if row.waiting for name in row.partitions}
        # Where all wait in one partition its tier does not matter, and need not be asked for.
        partitions = where.limits().partitions if len(waits_in) > 1 else {}
        ordered = scheduling_order(rows, partitions)
        return JobList(jobs_of(where.name, ordered, self.store, self.explain_job))

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

    def explain_job(
        self,
        job_id: str | int,
        *,
        sooner: bool = False,
        refresh: bool = False,
        cluster: str = "auto",
        kind: JobKind = "any",
    ) -> Explanation:
        """Return why a job waits, with the evidence, also of a job that runs.

        It costs the cluster at most five calls, and what it has answered to this user within the
        last minute is used again, unless something was done to the experiment since. `kind` and
        errors are as in `find_jobs`.

        Args:
            job_id: The job, an array, or one element, such as "4711_3"; or the id or name of an
                experiment, of whose jobs the first to start is meant.
            sooner: Whether the cluster is asked what would start it sooner, with at most three
                calls more; off by default.
            refresh: Whether the cluster is asked again at once; off by default.
        """
        from detslurm.sdk.jobs.job import named
        from detslurm.sdk.waiting.asking import Inquiry

        name, kind = self._meaning(job_id, kind)
        where = self.queues.cluster(cluster)
        asked = Inquiry(self.store, where, partial(named, name=name, kind=kind), refresh=refresh)
        self._check_found(asked.found, asked.jobs, name, where, kind)
        return asked.explanation(sooner=sooner)

    def explain_trial(
        self,
        experiment_id: int | str,
        trial_id: int,
        *,
        sooner: bool = False,
        refresh: bool = False,
    ) -> Explanation:
        """Return why the job of the trial `trial_id` of an experiment (`experiment_id`, or its
        name) waits, or `NotFound` if none is in the queue. The other arguments are as in
        `explain_job`."""
        from detslurm.sdk.waiting.asking import Inquiry
        from detslurm.store import fold_facts

        number = self._experiment_id(experiment_id)

        def choose(jobs: Sequence[Job]) -> list[Job]:
            mine = [job for job in jobs if job.experiment_id == number]
            return [job for job in mine if trial_id in job.trial_ids]

        facts = fold_facts(self.store.experiment(number))
        for name in dict.fromkeys(job.cluster for job in facts.jobs):
            asked = Inquiry(self.store, self.queues.cluster(name), choose, refresh=refresh)
            if asked.found:
                return asked.explanation(sooner=sooner)
        raise NotFound(f"no job of trial {trial_id} is in the queue")

    def _meaning(self, word: str | int, kind: JobKind) -> tuple[str, JobKind]:
        """A job's name or an experiment's id, from what may be the experiment's name or `last`.
        Raises ValueError for what can't be either, NotFound for an unknown name."""
        text = str(word)
        if _NAME.fullmatch(text):
            return text, kind
        if kind == "job" or not text or text[0].isdigit():
            raise ValueError(f"{word!r} is neither a job such as 4711 or 4711_3, nor an experiment")
        return str(self._experiment_id(text)), "experiment"

    def _check_found(
        self, found: Sequence[Job], jobs: Sequence[Job], name: str, where: Cluster, kind: JobKind
    ) -> None:
        """Warn where a number may mean another job, too. Raises NotFound where no job was found."""
        from detslurm.sdk.jobs.job import named, not_queued

        if kind == "experiment":
            self.store.experiment(int(name))
        experiment = kind != "job" and self._is_experiment(name)
        other = '; `-j` (in Python `kind="job"`) means the job of this number'
        if not found and experiment:
            raise NotFound(
                f"experiment {name} has no job in the queue; `detslurm experiment describe {name}`"
                f" shows how it stands{other if kind == 'any' else ''}"
            )
        if not found:
            raise NotFound(not_queued(name, where.evidence([name.partition("_")[0]])))
        if kind != "any" or not experiment:
            return
        if all(str(job.experiment_id) != name for job in found):
            self.warn(f"experiment {name} has no job in the queue: this is Slurm's job {name}")
        elif named(jobs, name, "job") not in ([], found):
            self.warn(f"{name} is an experiment and a job: the experiment is meant{other}")

    def _is_experiment(self, name: str) -> bool:
        from detslurm.store import fold_facts

        with suppress(ValueError, StoreError):
            return not fold_facts(self.store.experiment(int(name))).desired.deleted
        return False

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
    ) -> QueuePlace | None:
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
