"""The short training that `submit --test-mode` makes of an experiment."""

from __future__ import annotations

from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.config.test_mode import in_test_mode

ASHA = {"name": "adaptive_asha", "max_trials": 20}
LENGTHS: list[tuple[dict[str, Any], Any]] = [
    ({"name": "single", "max_length": 300}, 1),
    ({"name": "single"}, 1),
    ({"name": "grid", "max_length": {"epochs": 9}}, {"epochs": 1}),
    ({**ASHA, "max_length": {"records": 900}}, {"records": 1}),
    ({**ASHA, "time_metric": "batches", "max_time": 99}, {"batches": 1}),
    ({**ASHA, "time_metric": "minutes", "max_time": 99}, 1),
    ({"name": "pbt", "population_size": 4, "num_rounds": 3,
      "length_per_round": {"epochs": 5}}, {"epochs": 1}),
    ({"name": "custom", "unit": "epochs"}, {"epochs": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("searcher", "length"), LENGTHS)
def test_every_searcher_becomes_one_short_trial(searcher: dict[str, Any], length: Any) -> None:
    """Its length is 1 in the unit that its code knows."""
    given = {"entrypoint": "a", "searcher": {**searcher, "metric": "m"}}
    searcher = in_test_mode(load_experiment(given)).config.to_dict()["searcher"]
    assert searcher["name"] == "single" and searcher["metric"] == "m"
    assert searcher["max_length"] == length


def test_the_rest_is_as_it_was() -> None:
    """Slots, variables and hyperparameters are those of the experiment; nothing is tried again."""
    given = {
        "entrypoint": "a",
        "description": "of digits",
        "searcher": {"name": "single", "metric": "m", "smaller_is_better": False},
        "environment": {"environment_variables": ["A=1"]},
        "resources": {"slots_per_trial": 4},
        "hyperparameters": {"rate": 0.1},
        "max_restarts": 7,
    }
    loaded = load_experiment(given)
    before, after = loaded.config.to_dict(), in_test_mode(loaded).config.to_dict()
    assert after["environment"]["environment_variables"]["cuda"] == ["A=1", "DETSLURM_TEST_MODE=1"]
    assert after["description"] == "[test mode] of digits"
    assert (after["max_restarts"], after["scheduling_unit"]) == (0, 1)
    assert after["searcher"]["smaller_is_better"] is False
    same = ("entrypoint", "hyperparameters", "reproducibility", "name", "resources")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
