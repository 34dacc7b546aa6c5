"""The one seam to whatever runs jobs: Slurm, or the embedded local cluster behind the same verbs.

Importing this package costs a runner nothing it does not need: the clusters themselves, submitit
and the planning are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm.slurm.allocation import Allocation
from detslurm.slurm.interface import (
    Cluster,
    ClusterLimits,
    JobInfo,
    PartitionLimits,
    SlurmError,
)
from detslurm.slurm.request import JobRequest

if TYPE_CHECKING:
    from detslurm.slurm.cluster import SlurmCluster
    from detslurm.slurm.detect import detect_cluster
    from detslurm.slurm.local import LocalCluster

__all__ = [
    "Allocation",
    "Cluster",
    "ClusterLimits",
    "JobInfo",
    "JobRequest",
    "LocalCluster",
    "PartitionLimits",
    "SlurmCluster",
    "SlurmError",
    "detect_cluster",
]

_LAZY = {
    "SlurmCluster": "cluster",
    "LocalCluster": "local",
    "detect_cluster": "detect",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
