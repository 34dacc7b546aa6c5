"""A small training in place of an experiment: whether it would run, before all of it is queued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detslurm._base import contract
from detslurm.config.loading import LoadedExperiment
from detslurm.config.schema.environment import DEVICES
from detslurm.config.schema.experiment import ExperimentConfig
from detslurm.config.schema.searcher import Searcher
from detslurm.config.schema.training import UNITS


def in_test_mode(loaded: LoadedExperiment) -> LoadedExperiment:
    """The same code on the same slots, for one trial of length 1 that is not restarted."""
    config = ExperimentConfig.from_dict(_shortened(loaded.config.to_dict()))
    return msgspec.structs.replace(loaded, config=config)


def _shortened(config: dict[str, Any]) -> dict[str, Any]:
    searcher, environment = config["searcher"], config["environment"]
    kept = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1}
    variables = {
        device: [*environment["environment_variables"][device], f"{contract.TEST_MODE}=1"]
        for device in DEVICES
    }
    return {
        **config,
        "description": f"[test mode] {config['description'] or ''}".rstrip(),
        "searcher": {
            "name": "single",
            **{name: searcher[name] for name in Searcher.__struct_fields__},
            "max_length": _one_unit(searcher),
        },
        "checkpoint_storage": {**config["checkpoint_storage"], **kept},
        "environment": {**environment, "environment_variables": variables},
        "slurm": {**config["slurm"], "trials_per_job": 1},
        "max_restarts": 0,
        "scheduling_unit": 1,
    }


def _one_unit(searcher: Mapping[str, Any]) -> int | dict[str, int]:
    """The shortest length, in the unit of the searcher's own, which the code may rely on."""
    length = searcher.get("max_length") or searcher.get("length_per_round")
    named = next(iter(length)) if isinstance(length, Mapping) else None
    unit = named or searcher.get("unit") or searcher.get("time_metric")
    return {unit: 1} if unit in UNITS else 1
