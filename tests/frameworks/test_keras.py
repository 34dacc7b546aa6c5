"""What a training with Keras goes on with, and what its checkpoints are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.beside import keras
from tests.frameworks.scripts import printed_by

__all__ = ["keras"]


def test_rates_steps_and_weights(keras: Path, tmp_path: Path) -> None:
    """All of them, and all that comes of them."""
    seen, said = printed_by("keras_fits.py", keras, tmp_path, KERAS_BACKEND="torch")
    assert_managed(seen, said)
    found = seen["fits"]
    rates = {name: one["rates"] for name, one in found.items()}
    assert rates["first"] == [0.1, 0.001]
    assert rates["continued"] == [0.001], "the same hyperparameters: from the checkpoint"
    assert rates["changed"] == rates["copied"] == [0.1], "others: those of this trial"
    assert rates["warm"] == [0.05, 0.025], "it counts from 0, and so does its schedule"
    assert rates["called"] == [0.05, 0.05]
    assert rates["namesake"] == [0.1, 0.1] and found["namesake"]["steps"] == [10, 20]
    assert found["warm"]["iterations"] == [0, 10] and found["warm"]["steps"] == [10, 20]
    assert found["warm"]["losses"][0] < found["scheduled"]["losses"][-1], "with other weights"
    assert found["adam"]["iterations"] == [20, 30], "its averages stay, and with them their number"
    assert rates["adam"] == [0.1, 0.1]
    assert found["several"]["steps"] == [10, 20], "what Keras counts beyond an epoch is not trained"
    for name, one in found.items():  # each is rated with a validation of its own weights
        for rated, own in one["rated"].values():
            assert own == pytest.approx(rated, rel=1e-5), name
    assert list(found["restored"]["saved"]) == ["20"]
    assert list(found["averaged"]["saved"]) == ["20"]


def assert_managed(seen: dict[str, Any], said: str) -> None:
    """Where a search has lengths, each operation ends with a validation and a checkpoint, and the
    better trial goes on; a test trains, validates and saves once. `TFKerasTrial` is none of ours.
    """
    lengths, stopping = seen["lengths"], seen["stopping"]
    assert (lengths["state"], sorted(lengths["steps"])) == ("COMPLETED", [20, 40]), said
    for steps, saved, count in zip(
        lengths["steps"], lengths["saved"], lengths["validations"], strict=True
    ):
        assert saved == [*range(10, steps + 1, 10)] and count == len(saved)
    assert (stopping["state"], stopping["steps"]) == ("COMPLETED", [40]), said
    assert seen["tested"] == {"training": [1], "validation": [1], "saved": [1]}
    assert seen["ended"] == {"left": False, "saved": [10, 20]}, "a preemption comes too late"
    assert seen["older"].startswith("detslurm has no TFKerasTrialContext: call model.fit()")
