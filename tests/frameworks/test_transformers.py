"""A trial with Hugging Face's Trainer has its own learning rate, from whatever checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.beside import hugging_face

__all__ = ["hugging_face"]

SCRIPT = Path(__file__).with_name("transformers_rates.py")


def test_options_of_the_optimizer_are_the_trials_own(hugging_face: Path, tmp_path: Path) -> None:
    """Half of the way is behind, so that half of the rate is left, and then a quarter; what was
    learnt stays. Rates of single layers are those of the script's optimizer."""
    env = {**os.environ, "PYTHONPATH": f"{hugging_face}:{SCRIPT.parents[2]}", "DETSLURM_TRACK": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path)], env=env, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "trainer": [
            2,
            [0.005, 0.25, 0.8],
            [0.005, 0.0, 0.8],
            [0.0025, 0.25, 0.8],
            [0.0025, 0.0, 0.8],
        ],
        "own": [2, [0.01, 0.01, 0.9], [0.005, 0.01, 0.9], [0.005, 0.01, 0.9], [0.0025, 0.01, 0.9]],
        "end": [True, False],
        "restored": [True],
        "half-written": [True],
    }
