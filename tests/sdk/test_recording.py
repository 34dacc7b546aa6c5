"""Searches that need code which takes part in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.submission.recording import recording_problems

LENGTH = {"max_length": {"epochs": 9}}


@pytest.mark.parametrize(
    ("searcher", "refused"),
    [
        ({"name": "random"}, False),
        ({"name": "optuna"} | LENGTH, False),
        ({"name": "adaptive_asha", "time_metric": "epochs", "max_time": 9}, False),
        ({"name": "adaptive_asha", "stop_once": True} | LENGTH, False),
        ({"name": "async_halving"} | LENGTH, True),
        ({"name": "pbt"}, True),
    ],
)
def test_those_that_pause_trials_are_refused(
    tmp_path: Path, searcher: dict[str, Any], refused: bool
) -> None:
    """With a message that names the others; code that imports detslurm may do what it takes."""
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    config = {"searcher": searcher, "record": {"from": ["wandb"]}, "metrics_from_log": []}
    found = recording_problems(config, {"train.py": script})
    assert [f"{searcher['name']} pauses" in text and "optuna" in text for text in found] == (
        [True] if refused else []
    )
    assert not recording_problems(config | {"record": None}, {"train.py": script})
    script.write_text("def f():\n    from determined import core\n")
    assert not recording_problems(config, {"train.py": script})
