"""Resource pools: the partitions of a cluster, with their free resources and waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detslurm.slurm import (
    Cluster,
    ClusterLimits,
    JobInfo,
    NodeInfo,
    PartitionLimits,
    SlurmError,
)
from detslurm.store import NotFound


@dataclass(frozen=True, kw_only=True)
class ResourcePool:
    """A partition of the cluster. Nodes that belong to several count in each of them.

    Attributes:
        name: Its name.
        default: Whether jobs go there that name none.
        up: Whether jobs start there.
        slot_type: "cuda" if its slots are GPUs, "cpu" if it has none.
        gpu_types: The types of its GPUs, as far as they have names.
        slots_total: How many slots it has; None if the cluster does not show its nodes.
        slots_free: How many of them are free on nodes that take jobs; None if that is not shown.
        nodes_total: How many nodes it has; None if the cluster does not show its nodes.
        nodes_available: How many of them take jobs; None if that is not shown.
        jobs_running: How many jobs and array elements run there, as far as the site shows them.
        jobs_queued: How many wait to start there.
        slots_queued: How many slots these wait for.
        max_time: The longest time limit in minutes; None if there is none.
        default_time: The time limit of jobs that name none, in minutes; None if it is `max_time`.
        max_nodes: The most nodes that a job may have; None if there is no limit.
        preempt_mode: The fate of a job that has to make room: "OFF", "REQUEUE", "CANCEL", ...
        grace_time: How many seconds it has then.
        priority_tier: Jobs of a partition with a higher tier are considered first.
        qos: The QOS whose limits apply to it; "" if there is none.
        allow_accounts: The accounts that may use it; () means all.
        allow_groups: The groups that may use it; () means all.
        allow_qos: The QOS that may use it; () means all.
        deny_accounts: The accounts that may not use it.
        deny_qos: The QOS that may not use it.
    """

    name: str
    default: bool
    up: bool
    slot_type: str
    gpu_types: tuple[str, ...]
    slots_total: int | None
    slots_free: int | None
    nodes_total: int | None
    nodes_available: int | None
    jobs_running: int
    jobs_queued: int
    slots_queued: int
    max_time: int | None
    default_time: int | None
    max_nodes: int | None
    preempt_mode: str
    grace_time: int
    priority_tier: int
    qos: str
    allow_accounts: tuple[str, ...]
    allow_groups: tuple[str, ...]
    allow_qos: tuple[str, ...]
    deny_accounts: tuple[str, ...]
    deny_qos: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def check_pool(cluster: Cluster, name: str) -> None:
    """Raises NotFound where a cluster has no such partition."""
    known = cluster.limits().partitions
    if known and name not in known:  # without any, they are not shown to this user
        raise NotFound(f"there is no resource pool {name!r}; there are {', '.join(sorted(known))}")


def pools_of(cluster: Cluster, warn: Callable[[str], None]) -> list[ResourcePool]:
    """The partitions of a cluster, which may hide its nodes: then there is a warning."""
    limits = cluster.limits()
    nodes: list[NodeInfo] | None = None
    try:
        nodes = cluster.nodes()
    except SlurmError as error:
        warn(f"{cluster.name} does not show its nodes: {error.message}")
    return pools(limits, nodes, cluster.queue())


def pools(
    limits: ClusterLimits, nodes: Sequence[NodeInfo] | None, jobs: Iterable[JobInfo]
) -> list[ResourcePool]:
    """The cluster's partitions, the default one first; `nodes` is None where they are not shown."""
    rows = list(jobs)
    found = [_pool(partition, nodes, rows) for partition in limits.partitions.values()]
    return sorted(found, key=lambda pool: (not pool.default, pool.name))


def _pool(
    partition: PartitionLimits, nodes: Sequence[NodeInfo] | None, jobs: Sequence[JobInfo]
) -> ResourcePool:
    mine = _nodes_of(partition, nodes)
    gpus = bool(partition.gpus_per_node)
    queued = [job for job in jobs if job.waiting and partition.name in job.partitions]
    return ResourcePool(
        name=partition.name,
        default=partition.default,
        up=partition.up,
        slot_type="cuda" if gpus else "cpu",
        gpu_types=partition.gpu_types,
        slots_total=None if mine is None else sum(n.gpus if gpus else n.cpus for n in mine),
        slots_free=None if mine is None else sum(_free(n, gpus=gpus) for n in mine),
        nodes_total=None if mine is None else len(mine),
        nodes_available=None if mine is None else sum(n.available for n in mine),
        jobs_running=sum(j.count for j in jobs if j.running and partition.name in j.partitions),
        jobs_queued=sum(job.count for job in queued),
        slots_queued=sum(job.slots * job.count for job in queued),
        max_time=partition.max_time,
        default_time=partition.default_time,
        max_nodes=partition.max_nodes,
        preempt_mode=partition.preempt_mode,
        grace_time=partition.grace_time,
        priority_tier=partition.priority_tier,
        qos=partition.qos or "",
        allow_accounts=partition.allow_accounts,
        allow_groups=partition.allow_groups,
        allow_qos=partition.allow_qos,
        deny_accounts=partition.deny_accounts,
        deny_qos=partition.deny_qos,
    )


def _nodes_of(
    partition: PartitionLimits, nodes: Sequence[NodeInfo] | None
) -> list[NodeInfo] | None:
    """Its nodes; None where the site does not show them, though it has some."""
    found = [node for node in nodes or () if partition.name in node.partitions]
    return found if found or (nodes is not None and not partition.nodes) else None


def _free(node: NodeInfo, *, gpus: bool) -> int:
    """A node without GPUs has no slots to offer in a pool whose slots are GPUs."""
    return 0 if gpus and not node.gpus else node.slots_free
