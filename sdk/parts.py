"""Names of the packages below that the commands use: parts of the SDK's objects, and their texts.

Each is loaded on first use: a command needs a few of them.
"""

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
    from detslurm.slurm import JobInfo, NodeInfo
    from detslurm.slurm.errors import SlurmError
    from detslurm.slurm.hostlist import compress_hostlist, compress_indices
    from detslurm.slurm.reasons import reason_of
    from detslurm.store import (
        ExperimentRow,
        ExperimentView,
        RunView,
        TrialDir,
        TrialRow,
        TrialView,
        ValidationView,
        fs,
    )
    from detslurm.store.columns import column_name
    from detslurm.store.curve import as_float, flat, is_number
    from detslurm.store.errors import NotFound, Refused, StoreError
    from detslurm.store.gc_policy import GCPolicy
    from detslurm.store.metric_rank import metric_rank
    from detslurm.store.objectives import SeveralObjectives
    from detslurm.store.provenance import CodeVersion, Software
    from detslurm.store.time_parts import Advice
    from detslurm.store.trial_time import TrainingTime

_LAZY = {
    "Advice": "detslurm.store.time_parts",
    "CodeVersion": "detslurm.store.provenance",
    "ConfigErrors": "detslurm.config.errors",
    "ExperimentConfig": "detslurm.config",
    "ExperimentRow": "detslurm.store",
    "ExperimentView": "detslurm.store",
    "GCPolicy": "detslurm.store.gc_policy",
    "JobInfo": "detslurm.slurm",
    "LoadedExperiment": "detslurm.config.loading",
    "NodeInfo": "detslurm.slurm",
    "NotFound": "detslurm.store.errors",
    "Preview": "detslurm.searcher.preview",
    "Refused": "detslurm.store.errors",
    "Row": "detslurm.searcher.preview",
    "RunView": "detslurm.store",
    "SeveralObjectives": "detslurm.store.objectives",
    "Simulation": "detslurm.searcher.simulation",
    "SlurmError": "detslurm.slurm.errors",
    "Software": "detslurm.store.provenance",
    "StoreError": "detslurm.store.errors",
    "TrainingTime": "detslurm.store.trial_time",
    "TrialDir": "detslurm.store",
    "TrialRow": "detslurm.store",
    "TrialView": "detslurm.store",
    "ValidationView": "detslurm.store",
    "as_float": "detslurm.store.curve",
    "as_yaml": "detslurm.config.writing",
    "column_name": "detslurm.store.columns",
    "compress_hostlist": "detslurm.slurm.hostlist",
    "compress_indices": "detslurm.slurm.hostlist",
    "config_keys": "detslurm.config.key_suggestions",
    "flat": "detslurm.store.curve",
    "fs": "detslurm.store",
    "is_number": "detslurm.store.curve",
    "load_experiment": "detslurm.config",
    "load_site": "detslurm.config",
    "metric_rank": "detslurm.store.metric_rank",
    "packaged": "detslurm.config.templates",
    "parse": "detslurm.config.reading",
    "purpose": "detslurm.config.templates",
    "reason_of": "detslurm.slurm.reasons",
    "sweep": "detslurm.config.hydra_sweeps",
}

__all__ = [
    "Advice",
    "CodeVersion",
    "ConfigErrors",
    "ExperimentConfig",
    "ExperimentRow",
    "ExperimentView",
    "GCPolicy",
    "JobInfo",
    "LoadedExperiment",
    "NodeInfo",
    "NotFound",
    "Preview",
    "Refused",
    "Row",
    "RunView",
    "SeveralObjectives",
    "Simulation",
    "SlurmError",
    "Software",
    "StoreError",
    "TrainingTime",
    "TrialDir",
    "TrialRow",
    "TrialView",
    "ValidationView",
    "as_float",
    "as_yaml",
    "column_name",
    "compress_hostlist",
    "compress_indices",
    "config_keys",
    "flat",
    "fs",
    "is_number",
    "load_experiment",
    "load_site",
    "metric_rank",
    "packaged",
    "parse",
    "purpose",
    "reason_of",
    "sweep",
]

__getattr__ = lazy_names(__name__, _LAZY)
