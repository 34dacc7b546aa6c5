"""Resource pools: the partitions of a cluster, with their free resources and waiting jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
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
class ResourcePool(PartitionLimits):
    """A partition of the cluster: its limits, its free resources, its jobs. Nodes that belong to
    several partitions count in each of them.

    Attributes:
        slot_type: "cuda" if its slots are GPUs, "cpu" if it has none.
        slots_total: How many slots it has; None if the cluster does not show its nodes.
        jobs_running: How many jobs and array elements run there, as far as the site shows them.
        jobs_queued: How many wait to start there.
    """

    slot_type: str
    slots_total: int | None
    slots_free: int | None
    nodes_total: int | None
    nodes_available: int | None
    jobs_running: int
    jobs_queued: int
    slots_queued: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without the names of its nodes."""
        return {name: value for name, value in asdict(self).items() if name != "nodes"}


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
    here = [job for job in jobs if partition.name in job.partitions]
    queued = [job for job in here if job.waiting]
    return ResourcePool(
        **{field.name: getattr(partition, field.name) for field in fields(partition)},
        slot_type="cuda" if gpus else "cpu",
        slots_total=None if mine is None else sum(n.gpus if gpus else n.cpus for n in mine),
        slots_free=None if mine is None else sum(_free(n, gpus=gpus) for n in mine),
        nodes_total=None if mine is None else len(mine),
        nodes_available=None if mine is None else sum(n.available for n in mine),
        jobs_running=sum(job.count for job in here if job.running),
        jobs_queued=sum(job.count for job in queued),
        slots_queued=sum(job.slots * job.count for job in queued),
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
