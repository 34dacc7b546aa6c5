"""The Python client: experiments and trials as objects over the store and the queue.

from detslurm.sdk import Client
experiment = Client().experiment(7)
experiment.pause()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._base.lazy import lazy_names

if TYPE_CHECKING:
    from detslurm.config.errors import ConfigErrors
    from detslurm.sdk.checkpoints.checkpoint import Checkpoint
    from detslurm.sdk.client import Client
    from detslurm.sdk.determined import Determined
    from detslurm.sdk.enums import (
        CheckpointSortBy,
        CheckpointState,
        DownloadMode,
        ExperimentSortBy,
        ExperimentState,
        LogLevel,
        ModelSortBy,
        OrderBy,
        TrialSortBy,
        TrialState,
    )
    from detslurm.sdk.errors import BundleError, LifecycleError, SubmitError
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.functions.executor import Executor
    from detslurm.sdk.jobs.job import Job
    from detslurm.sdk.jobs.resource_pool import ResourcePool
    from detslurm.sdk.jobs.slots import NodeSlots
    from detslurm.sdk.models.model import Model
    from detslurm.sdk.models.version import ModelVersion
    from detslurm.sdk.shortcuts import submit
    from detslurm.sdk.trials.metrics import TrialMetrics
    from detslurm.sdk.trials.trial import Trial
    from detslurm.sdk.workspaces import Project, Workspace
    from detslurm.slurm import NodeInfo, SlurmError

__all__ = [
    "BundleError",
    "Checkpoint",
    "CheckpointSortBy",
    "CheckpointState",
    "Client",
    "ConfigErrors",
    "Determined",
    "DownloadMode",
    "Executor",
    "Experiment",
    "ExperimentSortBy",
    "ExperimentState",
    "Job",
    "LifecycleError",
    "LogLevel",
    "Model",
    "ModelSortBy",
    "ModelVersion",
    "NodeInfo",
    "NodeSlots",
    "OrderBy",
    "Project",
    "ResourcePool",
    "SlurmError",
    "SubmitError",
    "Trial",
    "TrialMetrics",
    "TrialSortBy",
    "TrialState",
    "Workspace",
    "submit",
]

_HOMES = {
    "detslurm.config.errors": ("ConfigErrors",),
    "checkpoints.checkpoint": ("Checkpoint",),
    "client": ("Client",),
    "determined": ("Determined",),
    "enums": (
        "CheckpointSortBy",
        "CheckpointState",
        "DownloadMode",
        "ExperimentSortBy",
        "ExperimentState",
        "LogLevel",
        "ModelSortBy",
        "OrderBy",
        "TrialSortBy",
        "TrialState",
    ),
    "errors": ("BundleError", "LifecycleError", "SubmitError"),
    "experiments.experiment": ("Experiment",),
    "functions.executor": ("Executor",),
    "jobs.job": ("Job",),
    "jobs.resource_pool": ("ResourcePool",),
    "jobs.slots": ("NodeSlots",),
    "models.model": ("Model",),
    "models.version": ("ModelVersion",),
    "shortcuts": ("submit",),
    "trials.metrics": ("TrialMetrics",),
    "trials.trial": ("Trial",),
    "workspaces": ("Project", "Workspace"),
    "detslurm.slurm.errors": ("SlurmError",),
    "detslurm.slurm.node_info": ("NodeInfo",),
}


# The command line needs one of these at a time.
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
