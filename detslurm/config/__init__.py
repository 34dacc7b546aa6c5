"""Experiment configuration: `experiment.yaml` to a typed, immutable `ExperimentConfig`.

All but the errors is imported on first use: what runs on compute nodes needs
`ExperimentConfig.from_dict` only, without PyYAML, and lists of experiments need no schema at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._base.lazy import lazy_names
from detslurm.config.errors import ConfigErrors, ConfigProblem, Position

if TYPE_CHECKING:
    from detslurm.config.loading import LoadedExperiment, load_experiment
    from detslurm.config.schema.experiment import ExperimentConfig
    from detslurm.config.schema.site import Partition, SiteProfile
    from detslurm.config.site import load_site, store_root

__all__ = [
    "ConfigErrors",
    "ConfigProblem",
    "ExperimentConfig",
    "LoadedExperiment",
    "Partition",
    "Position",
    "SiteProfile",
    "load_experiment",
    "load_site",
    "store_root",
]

_HOMES = {
    "loading": ("LoadedExperiment", "load_experiment"),
    "schema.experiment": ("ExperimentConfig",),
    "schema.site": ("Partition", "SiteProfile"),
    "site": ("load_site", "store_root"),
}


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
