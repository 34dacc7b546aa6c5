"""The one seam to whatever runs jobs: Slurm, or the embedded local cluster behind the same verbs.

Importing this package costs a runner nothing it does not need: the clusters themselves, submitit
and the planning are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._base.lazy import lazy_names
from detslurm.slurm.allocation import Allocation
from detslurm.slurm.errors import SlurmError, SubmitLimitReached

if TYPE_CHECKING:
    from detslurm.slurm.cluster import SlurmCluster
    from detslurm.slurm.detect import detect_cluster
    from detslurm.slurm.interface import Allowance, Cluster, ClusterLimits, PartitionLimits
    from detslurm.slurm.local import LocalCluster
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.plan import plan_job
    from detslurm.slurm.queue_state import JobInfo
    from detslurm.slurm.request import JobRequest

__all__ = [
    "Allocation",
    "Allowance",
    "Cluster",
    "ClusterLimits",
    "JobInfo",
    "JobRequest",
    "LocalCluster",
    "NodeInfo",
    "PartitionLimits",
    "SlurmCluster",
    "SlurmError",
    "SubmitLimitReached",
    "detect_cluster",
    "plan_job",
]

_HOMES = {
    "cluster": ("SlurmCluster",),
    "detect": ("detect_cluster",),
    "interface": ("Allowance", "Cluster", "ClusterLimits", "PartitionLimits"),
    "local": ("LocalCluster",),
    "node_info": ("NodeInfo",),
    "plan": ("plan_job",),
    "queue_state": ("JobInfo",),
    "request": ("JobRequest",),
}


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
