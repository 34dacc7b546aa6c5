"""Names of the packages below that the commands use: parts of the SDK's objects, and their texts.

Each is loaded on first use: a command needs a few of them.
"""

# ruff: noqa: F401 (others import them from here)
# mypy: implicit-reexport

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._base.lazy import lazy_names

if TYPE_CHECKING:
    from detslurm.config import ExperimentConfig, load_experiment, load_site
    from detslurm.config.errors import ConfigErrors
    from detslurm.config.hydra_sweeps import sweep
    from detslurm.config.key_suggestions import config_keys
    from detslurm.config.loading import LoadedExperiment
    from detslurm.config.reading import parse
    from detslurm.config.templates import packaged, purpose
    from detslurm.config.writing import as_yaml
    from detslurm.searcher.preview import Preview, Row
    from detslurm.searcher.simulation import Simulation
    from detslurm.slurm import JobInfo, NodeInfo, SlurmError
    from detslurm.slurm.hostlist import compress_hostlist, compress_indices
    from detslurm.slurm.reasons import reason_of
    from detslurm.store import (
        Advice,
        ExperimentRow,
        ExperimentView,
        RunView,
        SeveralObjectives,
        TrainingTime,
        TrialDir,
        TrialRow,
        TrialView,
        ValidationView,
        as_float,
        column_name,
        flat,
        fs,
        is_number,
    )
    from detslurm.store.errors import NotFound, Refused, StoreError
    from detslurm.store.gc_policy import GCPolicy
    from detslurm.store.metric_rank import metric_rank
    from detslurm.store.provenance import CodeVersion, Software

_HOMES = {
    "detslurm.config": ("ExperimentConfig", "load_experiment", "load_site"),
    "detslurm.config.errors": ("ConfigErrors",),
    "detslurm.config.hydra_sweeps": ("sweep",),
    "detslurm.config.key_suggestions": ("config_keys",),
    "detslurm.config.loading": ("LoadedExperiment",),
    "detslurm.config.reading": ("parse",),
    "detslurm.config.templates": ("packaged", "purpose"),
    "detslurm.config.writing": ("as_yaml",),
    "detslurm.searcher.preview": ("Preview", "Row"),
    "detslurm.searcher.simulation": ("Simulation",),
    "detslurm.slurm": ("JobInfo", "NodeInfo"),
    "detslurm.slurm.errors": ("SlurmError",),
    "detslurm.slurm.hostlist": ("compress_hostlist", "compress_indices"),
    "detslurm.slurm.reasons": ("reason_of",),
    "detslurm.store": (
        "ExperimentRow",
        "ExperimentView",
        "RunView",
        "TrialDir",
        "TrialRow",
        "TrialView",
        "ValidationView",
        "fs",
    ),
    "detslurm.store.columns": ("column_name",),
    "detslurm.store.curve": ("as_float", "flat", "is_number"),
    "detslurm.store.errors": ("NotFound", "Refused", "StoreError"),
    "detslurm.store.gc_policy": ("GCPolicy",),
    "detslurm.store.metric_rank": ("metric_rank",),
    "detslurm.store.objectives": ("SeveralObjectives",),
    "detslurm.store.provenance": ("CodeVersion", "Software"),
    "detslurm.store.time_parts": ("Advice",),
    "detslurm.store.trial_time": ("TrainingTime",),
}

__getattr__ = lazy_names(__name__, _HOMES)
