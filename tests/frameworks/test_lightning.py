"""Where a training with Lightning is left makes no difference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.beside import lightning

__all__ = ["lightning"]

SCRIPT = Path(__file__).with_name("lightning_leaves.py")


def test_it_goes_on_as_if_it_had_not_left(lightning: Path, tmp_path: Path) -> None:
    """Within an epoch, at its end, in a validation; with a limit of epochs or of steps, schedules
    that wait for a metric, and early stopping that insists on one."""
    env = {**os.environ, "PYTHONPATH": f"{lightning}:{SCRIPT.parents[2]}", "DETSLURM_TRACK": "0"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path)], env=env, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}, done.stderr
