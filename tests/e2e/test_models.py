"""A model from its training to another process that knows nothing but its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.envelope import unwrap

TRAIN = """\
import detslurm as det

with det.core.init() as core:
    weight = 0.0
    for step in range(1, 4):
        weight += 0.5
        core.train.report_validation_metrics(step, {"loss": 2 - weight})
        with core.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "weight").write_text(str(weight))
"""

USE = """\
from pathlib import Path
from determined.experimental import client

version = client.get_model("digits").get_version()
weight = float((version.checkpoint.download("copy") / "weight").read_text())
assert weight == float((version.checkpoint.path / "weight").read_text())
print(version.version, weight, version.checkpoint.validation_metrics["loss"])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty directory with a store in it."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "use.py").write_text(USE)
    return tmp_path


def run(folder: Path, *words: str) -> str:
    """A command in that directory, as a user calls it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DET", "SLURM"))}
    env |= {"DETSLURM_ROOT": str(folder / "store"), "DETSLURM_SITE": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def detslurm(folder: Path, *words: str) -> Any:
    """What a command says as JSON."""
    return unwrap(run(folder, "-m", "detslurm", *words, "--json"))


def test_a_model_is_trained_registered_and_loaded_by_its_name(folder: Path) -> None:
    """The best checkpoint gets a name; another process loads it, and nothing deletes it."""
    run(folder, "train.py")
    best = detslurm(folder, "experiment", "list-checkpoints", "1", "--best", "1")[0]["uuid"]
    detslurm(folder, "model", "create", "digits", "--label", "demo")
    detslurm(folder, "model", "register-version", "digits", best[:8])
    assert run(folder, "-m", "detslurm.compat", "use.py").split() == ["1", "1.5", "0.5"]
    kept = detslurm(folder, "checkpoint", "describe", best)
    assert "model digits" in str(kept)
