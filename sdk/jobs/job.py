"""Jobs of the queue in Determined's terms: slots acquired and needed, and whose trials."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from detslurm._base.display import Displayed, html_table
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.jobs.owner import Owners
from detslurm.sdk.jobs.status import described_end
from detslurm.slurm import JobInfo, ref_of
from detslurm.slurm.hostlist import expand_indices
from detslurm.slurm.priority import priority_of
from detslurm.slurm.reasons import reason_of

if TYPE_CHECKING:
    from detslurm.sdk.waiting.explanation import Explanation
    from detslurm.store import Store

# A site may put a word of its own before the names of jobs.
_TASK_JOB = re.compile(r"\bdet-(command|shell|notebook|tensorboard)-\d+$")
JobKind = Literal["any", "experiment", "job"]
"""The meaning of a number: an experiment's id, a Slurm job's id, or whichever of both exists."""


class JobList(list["Job"]):
    """Jobs of a queue; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        heads = ["Job", "Name", "User", "State", "Slots", "Partition", "Why it waits"]
        return html_table(
            heads,
            (
                [job.id, job.name, job.user, job.slurm_state, job.slots_needed, job.resource_pool,
                 job.reason_text]
                for job in self
            ),
        ) or "<p>There are no jobs.</p>"  # fmt: skip


@dataclass(frozen=True, repr=False)
class Job(Displayed):
    """A job in the queue: a plain job, or the elements of an array that are in the same condition.

    Attributes:
        parts: The queue's rows that it stands for, of one or several elements each.
        experiment_id: The experiment in this store that it works for; None if there is none.
        position: Its place in the order in which jobs are scheduled, counted from 0.
    """

    cluster: str
    parts: tuple[JobInfo, ...]
    experiment_id: int | None = None
    position: int = 0
    _owners: Owners | None = field(default=None, repr=False, compare=False)
    _explain: Callable[..., Explanation] | None = field(default=None, repr=False, compare=False)

    def _facts(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "user": self.user,
            "state": self.slurm_state,
            "experiment": self.experiment_id,
            "waits_for": self.reason_text,
        }

    @property
    def id(self) -> str:
        """Slurm's name for it, such as "4711", "4711_3" or "4711_[3-9]"."""
        return self._whole.ref

    @property
    def job_id(self) -> str:
        """The number of the job, or of the array that its elements belong to."""
        return self._first.job_id

    @property
    def refs(self) -> list[str]:
        """Slurm's names for its elements, such as "4711_3"; of a plain job the one name."""
        return self._whole.refs

    @property
    def type(self) -> str:
        """ "EXPERIMENT" if it works for an experiment in this store, "COMMAND", "SHELL", "NOTEBOOK"
        or "TENSORBOARD" for a task, else "SLURM"."""
        if self.experiment_id is None:
            return "SLURM"
        task = _TASK_JOB.search(self._first.name)  # as the submission has named it
        return task[1].upper() if task else "EXPERIMENT"

    @property
    def name(self) -> str:
        """The experiment's name, or the job's."""
        return self._first.comment if self.experiment_id is not None else self._first.name

    @property
    def user(self) -> str:
        """The user who submitted it."""
        return self._first.user

    @property
    def account(self) -> str:
        """The account that it is charged to; "" if the site has none."""
        return self._first.account

    @property
    def qos(self) -> str:
        """Its quality of service; "" if the site has none."""
        return self._first.qos

    @property
    def resource_pool(self) -> str:
        """The partition; several, with commas, if a waiting job may start in any of them."""
        return ",".join(self._first.partitions)

    @property
    def state(self) -> str:
        """ "RUNNING" if it has its slots, "QUEUED" if it waits for them."""
        return "QUEUED" if self.waiting else "RUNNING"

    @property
    def slurm_state(self) -> str:
        """Slurm's word for its state, such as "PENDING" or "RUNNING"."""
        return self._first.state

    @property
    def waiting(self) -> bool:
        """Whether it waits, held or not."""
        return self._first.waiting

    @property
    def held(self) -> bool:
        """Whether it waits for a release."""
        return self._first.held

    @property
    def reason(self) -> str:
        """Slurm's word for why it waits, such as "Priority"; "" if it doesn't."""
        return self._first.reason if self.waiting else ""

    @property
    def reason_text(self) -> str:
        """Why it waits, in a few plain words; "" if it doesn't."""
        return reason_of(self.reason).short if self.reason else ""

    @property
    def priority(self) -> int | None:
        """The priority of an experiment's job by its nice, from 1 (first, or nothing lowers it) to
        99 (last). None for jobs of no experiment, and where the nice is unknown."""
        if self.experiment_id is None or self.nice is None:
            return None
        return priority_of(self.nice)

    @property
    def nice(self) -> int | None:
        """By how much its owner lowered Slurm's priority; None if that is unknown."""
        return self._first.nice

    @property
    def slurm_priority(self) -> int | None:
        """Slurm's priority: what waits with a higher one is considered earlier; None if unknown."""
        return self._first.priority

    @property
    def submitted(self) -> float | None:
        """When it was submitted, in seconds since 1970; None if unknown."""
        return self._first.submitted

    @property
    def started(self) -> float | None:
        """When its first element started, in seconds since 1970; None if it waits."""
        return min((part.started for part in self.parts if part.started), default=None)

    @property
    def expected_start(self) -> float | None:
        """When Slurm expects to start it, in seconds since 1970; None if Slurm has no guess. It may
        be wrong in both directions: Slurm plans with time limits, and without later jobs."""
        return min(
            (part.expected_start for part in self.parts if part.expected_start), default=None
        )

    @property
    def time_limit(self) -> int | None:
        """Its time limit in seconds; None if it is unlimited or unknown."""
        return self._first.time_limit

    @property
    def time_left(self) -> int | None:
        """The seconds until the first of its elements has to end; None if that is unknown."""
        left = [part.time_left for part in self.parts if part.time_left is not None]
        return None if self.waiting else min(left, default=None)

    @property
    def slots_needed(self) -> int:
        """How many slots its elements have or wait for: GPUs, or CPUs where it needs no GPUs."""
        return sum(part.slots * part.count for part in self.parts)

    @property
    def slots_acquired(self) -> int:
        """How many slots it has: all of them or none."""
        return 0 if self.waiting else self.slots_needed

    @property
    def requested(self) -> dict[str, Any]:
        """The request of each of its elements, by Slurm's names; other resources are left out.
        Memory is in MiB; CPUs and memory are those of all nodes of an element."""
        row = self._first
        given = {
            "nodes": row.node_count, "cpus": row.cpus, "gpus": row.gpus, "memory": row.memory,
            "throttle": row.throttle, "dependency": row.dependency, "features": row.features,
            "licenses": row.licenses, "reservation": row.reservation,
        }  # fmt: skip
        return {name: value for name, value in given.items() if value}

    @property
    def directory(self) -> str:
        """The directory that it works in."""
        return self._first.folder

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that it runs on."""
        return list(dict.fromkeys(name for part in self.parts for name in part.nodes))

    @cached_property
    def trial_ids(self) -> list[int]:
        """The ids of the trials that it works for; a worker of a search may have none as yet."""
        if self._owners is None or self.experiment_id is None:
            return []
        return self._owners.trial_ids(self.cluster, self.experiment_id, self.refs)

    @property
    def pause_reason(self) -> str | None:
        """Why its experiment is paused, if it is and not by its user."""
        if self._owners is None or self.experiment_id is None:
            return None
        return self._owners.pause_reason(self.experiment_id)

    def only(self, indices: Collection[int]) -> list[Job]:
        """Return the job of the elements with these `indices` alone; nothing if it has none."""
        kept = [(part, [i for i in part.indices if i in indices]) for part in self.parts]
        parts = tuple(replace(part, ref=ref_of(part.job_id, some)) for part, some in kept if some)
        return [replace(self, parts=parts)] if parts else []

    def explain(self, *, sooner: bool = False, refresh: bool = False) -> Explanation:
        """Return why it waits, with the evidence; arguments and errors are as in
        `Client.explain_job`, and it is a `LifecycleError` if it does not come from a client."""
        if self._explain is None:
            raise LifecycleError(f"job {self.id} does not come from a client")
        return self._explain(
            self.id, sooner=sooner, refresh=refresh, cluster=self.cluster, kind="job"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything that is known of it, as plain data."""
        names = (
            "position", "id", "type", "name", "user", "account", "qos", "resource_pool", "state",
            "slurm_state", "reason", "reason_text", "held", "priority", "nice", "slurm_priority",
            "submitted", "started", "expected_start", "time_limit", "time_left",
            "slots_acquired", "slots_needed", "requested", "nodes", "directory", "experiment_id",
            "trial_ids", "cluster",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    @property
    def _first(self) -> JobInfo:
        return self.parts[0]

    @cached_property
    def _whole(self) -> JobInfo:
        """One row for all elements."""
        indices = sorted(index for part in self.parts for index in part.indices)
        return JobInfo(ref_of(self.job_id, indices), self.slurm_state)


def grouped(rows: Iterable[JobInfo]) -> list[tuple[JobInfo, ...]]:
    """Rows of the queue, those of an array in the same condition together, in their order."""
    groups: dict[object, list[JobInfo]] = {}
    for row in rows:
        groups.setdefault(_condition(row), []).append(row)
    return [tuple(group) for group in groups.values()]


def _condition(row: JobInfo) -> object:
    if not row.indices:
        return row.job_id
    if not row.waiting:
        return row.job_id, row.state
    return row.job_id, row.state, row.reason, row.priority, row.partitions


def jobs_of(
    cluster: str,
    rows: Sequence[JobInfo],
    store: Store,
    explain: Callable[..., Explanation] | None = None,
) -> list[Job]:
    """The jobs that these rows of the queue stand for, in their order."""
    owners = Owners(store)
    return [
        Job(cluster, parts, owners.experiment_id(parts[0]), place, owners, explain)
        for place, parts in enumerate(grouped(rows))
    ]


def named(jobs: Sequence[Job], name: str, kind: JobKind = "any") -> list[Job]:
    """The jobs that a name stands for (as in `Client.find_jobs`), in their order; of an array only
    the elements that it names."""
    number, underscore, indices = name.partition("_")
    if underscore:
        chosen = frozenset(expand_indices(indices))
        return [part for job in jobs if job.job_id == number for part in job.only(chosen)]
    by_experiment = [job for job in jobs if str(job.experiment_id) == number]
    if kind == "experiment" or (kind == "any" and by_experiment):
        return by_experiment
    return [job for job in jobs if job.job_id == number]


def not_queued(name: str, known: Mapping[str, JobInfo]) -> str:
    """That a job is not in the queue, and how it ended."""
    info = known.get(name) or next(iter(known.values()), None)
    if info is None or not info.final:
        return f"no job {name} is in the queue, nor a job of an experiment {name}"
    parts = PurePath(info.folder).parts[-3:]
    whose = f" of experiment {parts[1]}" if parts[:1] == ("experiments",) else ""
    return f"job {info.ref}{whose} is not in the queue any more: it ended {described_end(info)}"
