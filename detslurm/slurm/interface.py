"""The interface of a cluster for the rest of detslurm, and its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

from detslurm.slurm.queue_state import JobInfo

if TYPE_CHECKING:
    from pathlib import Path

    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.pending_details import PendingDetails
    from detslurm.slurm.request import JobRequest


@dataclass(frozen=True, slots=True)
class PartitionLimits:
    """A partition: what a job there may ask for, and what may happen to it.

    Attributes:
        default: Whether jobs go there that name none.
        up: Whether jobs start there.
        max_time: The longest time limit in minutes; None if there is none.
        default_time: The time limit of jobs that name none, in minutes; None if it is `max_time`.
        max_nodes: The most nodes that a job may have; None if there is no limit.
        preempt_mode: The fate of a job that has to make room: "OFF", "REQUEUE", "CANCEL", ...
        grace_time: How many seconds it has then.
        priority_tier: Jobs of a partition with a higher tier are considered first.
        cpus_per_node: The CPUs of its largest node; None if unknown.
        gpu_types: The types of its GPUs, as far as they have names.
        qos: The QOS whose limits apply to it; "" if there is none.
        allow_accounts: The accounts that may use it; () means all, of groups and QOS, too.
    """

    name: str
    default: bool = False
    up: bool = True
    max_time: int | None = None
    default_time: int | None = None
    max_nodes: int | None = None
    preempt_mode: str = "OFF"
    grace_time: int = 0
    priority_tier: int = 1
    nodes: tuple[str, ...] = ()
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    gpu_types: tuple[str, ...] = ()
    qos: str = ""
    allow_accounts: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()


def _most(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _least(one: int | None, other: int | None) -> int | None:
    return min((n for n in (one, other) if n is not None), default=None)


def _either(one: PartitionLimits, other: PartitionLimits) -> PartitionLimits:
    """Merge the limits of two partitions in which a job may start; leave admission open."""
    modes = sorted((one.preempt_mode, other.preempt_mode), key=lambda mode: "REQUEUE" in mode)
    gpus = _least(one.gpus_per_node or None, other.gpus_per_node or None)
    return PartitionLimits(
        name=f"{one.name},{other.name}",
        up=one.up or other.up,
        max_time=_most(one.max_time, other.max_time),
        default_time=_least(one.default_time or one.max_time, other.default_time or other.max_time),
        max_nodes=_most(one.max_nodes, other.max_nodes),
        preempt_mode=next((mode for mode in modes if "CANCEL" in mode), modes[0]),
        grace_time=min(one.grace_time, other.grace_time),
        priority_tier=max(one.priority_tier, other.priority_tier),
        nodes=tuple(dict.fromkeys((*one.nodes, *other.nodes))),
        cpus_per_node=_least(one.cpus_per_node, other.cpus_per_node),
        gpus_per_node=gpus or one.gpus_per_node,  # jobs with GPUs start where there are some
        gpu_types=tuple(dict.fromkeys((*one.gpu_types, *other.gpu_types))),
    )


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The rules of a cluster that submission and preemption depend on."""

    cluster: str = ""
    max_array_size: int = 1001
    max_array_tasks: int | None = None
    max_job_count: int = 10000
    kill_wait: int = 30
    job_requeue: bool = True
    accounting: bool = True
    enforces_qos: bool = False
    changes_jobs: bool = False  # by a plugin of the site, as they are submitted
    age_points: float = 0.0  # of Slurm's priority, for an hour of waiting; 0: none, or unknown
    preempt_type: str = ""  # such as "preempt/partition_prio"; "" is unknown
    preempt_mode: str = "OFF"  # of partitions without their own
    gres_types: tuple[str, ...] = ()
    tres_gpus: bool = False
    # Empty where the site does not show them to this user.
    partitions: Mapping[str, PartitionLimits] = field(default_factory=dict)

    @property
    def default_partition(self) -> str | None:
        """Name of the partition that a job without --partition lands in."""
        return next((p.name for p in self.partitions.values() if p.default), None)

    def partition(self, name: str | None) -> PartitionLimits | None:
        """The limits of a partition (None: the default), or of several, `a,b`, of which a job
        may start in any; None when unknown."""
        names = (name or self.default_partition or "").split(",")
        if not all(one in self.partitions for one in names):
            return None
        return reduce(_either, (self.partitions[one] for one in names))


@dataclass(frozen=True, slots=True)
class Charge:
    """The holders of a job's limits: names of QOS in their order, and an association."""

    user: str
    account: str
    partition: str
    qos: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of QOS and accounts for one kind of job; None and empty where none is known.

    Attributes:
        room: How many more may be submitted now; each element of an array counts.
        limit: The limit that `room` comes from.
        problem: Why not even a single job could ever start.
    """

    room: int | None = None
    limit: str = ""
    problem: str | None = None
    charge: Charge | None = None


class Cluster(Protocol):
    """Slurm or the embedded local cluster; refs are "1234" or "1234_5"."""

    name: str

    def script(self, request: JobRequest) -> str:
        """The batch script that `submit` would hand over."""

    def check(self, request: JobRequest) -> str | None:
        """The obstacle of such jobs, if it is known; nothing is queued.

        Raises `SlurmError` where the cluster would refuse them.
        """

    def allowance(self, request: JobRequest) -> Allowance:
        """The limits of partition, QOS and accounts for such jobs, as far as they are shown."""

    def allowance_now(self, charge: Mapping[str, Any]) -> Allowance:
        """The same later, by the charge of `allowance`, with one call. Raises `SlurmError`."""

    def submit(self, request: JobRequest) -> str:
        """Queue the request with one call and return the job id."""

    def submitted(self, folder: Path, mark: str) -> str | None:
        """The job of the request with this folder and mark, if the queue has it."""

    def cancel(self, refs: Collection[str], *, pending_only: bool = False) -> None:
        """End these jobs (TERM, then KILL); those that are over already are skipped."""

    def notify(self, refs: Collection[str], *, steps: bool = False) -> None:
        """Let a runner read the intents; `steps`: let code without a runner save and leave."""

    def requeue(self, ref: str, *, hold: bool = False, only_running: bool = False) -> None:
        """Put exactly this job or array element back into the queue.

        With `only_running` a job that is over or being ended stays so, without an error.
        """

    def hold(self, refs: Collection[str]) -> None:
        """Keep these from starting; running ones are held at their next requeue."""

    def release(self, refs: Collection[str]) -> None:
        """Let held jobs start again."""

    def update(self, ref: str, **fields: str | int) -> None:
        """Change fields of queued jobs, by Slurm's names (nice=10, ArrayTaskThrottle=4).

        Several refs are joined by commas; a refused job keeps no other from being changed.
        """

    def top(self, ref: str) -> None:
        """Put a job before the other pending jobs of its user, where the site lets users do so."""

    def query(self, job_ids: Collection[str]) -> dict[str, JobInfo]:
        """Everything the queue knows of these jobs, by ref, with one call; absent = unknown."""

    def evidence(
        self, job_ids: Collection[str], *, since: float | None = None
    ) -> dict[str, JobInfo]:
        """The records of accounting or the controller about jobs that left the queue."""

    def energy(self, job_ids: Collection[str], *, since: float | None) -> dict[str, float]:
        """The joules of jobs by accounting, by ref, with one call; absent = unknown.

        They are those of the jobs' nodes, also where other jobs run there, too.
        """

    def queue(self, *, partition: str | None = None) -> list[JobInfo]:
        """All jobs that wait or run, as far as the site shows them, with one call."""

    def nodes(self) -> list[NodeInfo]:
        """All nodes with their usage, with one call."""

    def pending_details(self, job: JobInfo, ref: str, rival: str | None) -> PendingDetails:
        """Evidence for a job's wait, beyond the queue and the nodes, with at most three calls.

        `ref` is one of its elements, `rival` a job ahead of it whose priority is compared.
        """

    def start_of(self, options: Sequence[str]) -> float:
        """When a job with these options of sbatch would start, without queueing it.

        Raises `SlurmError` where the cluster would refuse it.
        """

    def expecting_limits(self) -> AbstractContextManager[None]:
        """Ask for the rules already, so that `limits` has them when it is called in the block."""

    def limits(self) -> ClusterLimits:
        """The cluster's rules, asked for once."""


def own_jobs(cluster: Cluster, job_ids: Collection[str], folder: str) -> list[str]:
    """Those of these jobs that the queue has and that work in `folder`, by one query.

    An id whose cluster restarted its count may be that of an element of another's array: commands
    reach the element by it, and `query` does not show it. So a job that is not shown is not among
    them. Raises `SlurmError` where the queue does not answer.
    """
    seen = cluster.query(job_ids)
    return list(job_ids_of([ref for ref, job in seen.items() if not job.is_foreign_to(folder)]))


def split_ref(ref: str) -> tuple[str, int | None]:
    """("1234", 5) of "1234_5", ("1234", None) of "1234"; ValueError for anything else."""
    job, underscore, index = ref.partition("_")
    if not job.isascii() or not job.isdigit() or (underscore and not index.isdigit()):
        raise ValueError(f"not a job reference: {ref!r}")
    return job, int(index) if underscore else None


def job_ids_of(refs: Collection[str]) -> Sequence[str]:
    """The distinct job ids of some refs, in their order."""
    return list(dict.fromkeys(split_ref(ref)[0] for ref in refs))
