"""What stands for a configuration where nobody wrote one: scripts that were not submitted here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

METRIC = "loss"
"""What the best validation of such an experiment goes by, smaller ones first."""


def unmanaged_config(
    name: str, entrypoint: Sequence[str], checkpoint_storage: Mapping[str, Any]
) -> dict[str, Any]:
    """The configuration of an experiment that begins with a process that already runs."""
    return {
        "name": name,
        "entrypoint": list(entrypoint),
        "searcher": {"name": "single", "metric": METRIC, "max_length": None},
        "hyperparameters": {},
        "checkpoint_storage": dict(checkpoint_storage),
        "reproducibility": {"experiment_seed": 0},
        "max_restarts": 0,
    }
