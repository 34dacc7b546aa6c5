"""What the configuration asks for in the environment of a run."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.config.run_config import RunConfig
from detslurm.exec.environment import interface_of, user_variables


def configuration(**sections: Any) -> RunConfig:
    """A complete one with a list of variables for each kind of slot."""
    of = {kind: [f"SLOTS={kind}", f"DET_INTER_NODE_NETWORK_INTERFACE={kind}0"]
          for kind in ("cpu", "cuda", "rocm")}  # fmt: skip
    given = {
        "entrypoint": "a",
        "searcher": {"name": "single", "metric": "loss"},
        "environment": {"environment_variables": of},
    }
    return RunConfig.of(load_experiment(given | sections).config.to_dict())


@pytest.mark.parametrize("slot_type", ["cpu", "cuda", "rocm", None])
@pytest.mark.parametrize("slots", [0, 1])
@pytest.mark.parametrize("gpus", ["", "3", "GPU-a,GPU-b"])
def test_variables_are_those_of_the_slots(slot_type: str | None, slots: int, gpus: str) -> None:
    """By the configured type, else by what the job was given: on the nodes, where they look for
    each other."""
    config = configuration(slurm={"slot_type": slot_type}, resources={"slots_per_trial": slots})
    expected = slot_type or ("cuda" if gpus else "cpu")
    found = user_variables(config, gpus.split(",") if gpus else [])
    assert found["SLOTS"] == expected and interface_of(config, found) == f"{expected}0"
