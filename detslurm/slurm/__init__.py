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
    from detslurm.slurm.allocation import (
        SIGNAL_EARLY,
        SLURM_OUTPUT_FD,
        cpus_per_task,
        step_of,
        visible_gpus,
    )
    from detslurm.slurm.arrays import JobArray, dealt, first_elements, plan_arrays, turns
    from detslurm.slurm.cluster import SlurmCluster
    from detslurm.slurm.detect import detect_cluster
    from detslurm.slurm.interface import (
        Allowance,
        Cluster,
        ClusterLimits,
        PartitionLimits,
        own_jobs,
        split_ref,
    )
    from detslurm.slurm.layout import PlanError
    from detslurm.slurm.local import LocalCluster
    from detslurm.slurm.mpi import mpi_types
    from detslurm.slurm.node_info import NodeInfo
    from detslurm.slurm.plan import JobPlan, plan_job
    from detslurm.slurm.preempted import is_preempted
    from detslurm.slurm.queue_listing import scheduling_order
    from detslurm.slurm.queue_state import WAITING_STATES, JobInfo, ref_of
    from detslurm.slurm.request import JobRequest
    from detslurm.slurm.sbatch import script_path
    from detslurm.slurm.shell_lines import failed_setups
    from detslurm.slurm.site import site_profile_from

__all__ = [
    "SIGNAL_EARLY",
    "SLURM_OUTPUT_FD",
    "WAITING_STATES",
    "Allocation",
    "Allowance",
    "Cluster",
    "ClusterLimits",
    "JobArray",
    "JobInfo",
    "JobPlan",
    "JobRequest",
    "LocalCluster",
    "NodeInfo",
    "PartitionLimits",
    "PlanError",
    "SlurmCluster",
    "SlurmError",
    "SubmitLimitReached",
    "cpus_per_task",
    "dealt",
    "detect_cluster",
    "failed_setups",
    "first_elements",
    "is_preempted",
    "mpi_types",
    "own_jobs",
    "plan_arrays",
    "plan_job",
    "ref_of",
    "scheduling_order",
    "script_path",
    "site_profile_from",
    "split_ref",
    "step_of",
    "turns",
    "visible_gpus",
]

_HOMES = {
    "allocation": ("SIGNAL_EARLY", "SLURM_OUTPUT_FD", "cpus_per_task", "step_of", "visible_gpus"),
    "arrays": ("JobArray", "dealt", "first_elements", "plan_arrays", "turns"),
    "cluster": ("SlurmCluster",),
    "detect": ("detect_cluster",),
    "interface": (
        "Allowance",
        "Cluster",
        "ClusterLimits",
        "PartitionLimits",
        "own_jobs",
        "split_ref",
    ),
    "layout": ("PlanError",),
    "local": ("LocalCluster",),
    "mpi": ("mpi_types",),
    "node_info": ("NodeInfo",),
    "plan": ("JobPlan", "plan_job"),
    "preempted": ("is_preempted",),
    "queue_listing": ("scheduling_order",),
    "queue_state": ("JobInfo", "WAITING_STATES", "ref_of"),
    "request": ("JobRequest",),
    "sbatch": ("script_path",),
    "shell_lines": ("failed_setups",),
    "site": ("site_profile_from",),
}


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
