"""`experiment bundle` and `import` as commands."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene


def test_there_and_back(
    scene: Scene, detslurm: Detslurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left out is said on both sides; mistakes are errors of one line."""
    kept = str(uuid.uuid4())
    scene.run(scene.experiment(), losses=[2.0], checkpoint=kept, end="completed")
    file = tmp_path / "digits.tar.gz"
    made = detslurm("experiment", "bundle", 1, "-o", file)
    assert made.out.splitlines()[0].startswith(f"Bundled experiment 1: {file} (")
    assert made.out.splitlines()[2] == "Left out: data.secrets.token"
    refused = detslurm("experiment", "bundle", 1, "-o", file, "--json")
    assert refused.status == 1 and "exists already" in refused.err

    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "elsewhere"))
    done = detslurm("import", file)
    assert done.out == ("Imported experiment 1 of alice as experiment 1 (1 trial, 1 checkpoint)\n")
    assert "data.secrets.token" in done.err
    assert detslurm("import", file, "--json").data["experiment_id"] == 2
    shown = detslurm("experiment", "describe", 1).out
    assert "experiment 1 of alice" in shown
    wrong = detslurm("import", tmp_path / "nothing.tar")
    assert wrong.status == 1 and "No such file" in wrong.err and "Traceback" not in wrong.err
