"""The file for somebody who is asked for help: all that explains a failure, and no secret."""

from __future__ import annotations

import json
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk import BundleError
from tests.sdk.scenes import YAML, Scene

QUOTED = """{slot_type: cpu, setup: ['export HF_TOKEN="hf-quoted"']}"""
TEXT = (
    YAML.replace("{slot_type: cpu}", QUOTED)
    + 'environment: {environment_variables: ["WANDB_API_KEY=0f3a0a6e11", "A=1"]}\n'
)


def content(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {m.name.partition("/")[2]: archive.extractfile(m) for m in archive.getmembers()}
        return {name: file.read() for name, file in found.items() if file is not None}


def test_it_has_what_explains_a_failure_and_no_secret(scene: Scene, tmp_path: Path) -> None:
    """Records, logs of the last runs, what the job itself printed, and how the cluster saw it."""
    experiment = scene.experiment(text=TEXT)
    saved = str(uuid.uuid4())
    scene.run(experiment, losses=[2.0], checkpoint=saved, end="error", reason="out of memory",
              log=["0: using hush-hush and 0f3a0a6e11", "0: hf-quoted is wrong"])  # fmt: skip
    (experiment.jobs / "slurm-7.out").write_text("oom_kill event\n")
    scene.queue.put("7", "OUT_OF_MEMORY", exit_code=0, signal=9)
    made = scene.client.trial(1).support_bundle(tmp_path)
    assert made.path == tmp_path / "detslurm-trial-1.tar.gz" and made.missing == ()
    assert made.path.stat().st_mode & 0o777 == 0o600 and list(tmp_path.glob(".*")) == []
    found = content(made.path)
    for secret in (b"hush-hush", b"0f3a0a6e11", b"hf-quoted"):
        assert not any(secret in data for data in found.values())
    assert b"using ******** and ********" in found["logs/run-1.log"]
    assert found["logs/slurm-7.out"] == b"oom_kill event\n"
    read: dict[str, Any] = {
        name: json.loads(data) for name, data in found.items() if name.endswith(".json")
    }
    assert read["slurm.json"][0]["state"] == "OUT_OF_MEMORY" and read["slurm.json"][0]["ref"] == "7"
    assert read["trial.json"]["runs"][0]["reason"] == "out of memory"
    assert read["metrics.json"]["validation_metrics"]["loss"]["last"] == 2.0
    assert {finding["area"] for finding in read["doctor.json"]} >= {"store", "python"}
    assert read["facts.json"][0]["type"] == "created" and read["versions.json"]["python"]
    with pytest.raises(BundleError, match="exists already"):
        scene.client.trial(1).support_bundle(tmp_path)


def test_numbers_that_json_lacks_are_text(scene: Scene, tmp_path: Path) -> None:
    """Whoever helps sees that a metric has diverged."""
    scene.run(scene.experiment(), losses=[1.0, float("-inf"), float("nan")], end="error")
    found = content(scene.client.trial(1).support_bundle(tmp_path / "a.tar.gz").path)
    loss = json.loads(found["metrics.json"])["validation_metrics"]["loss"]
    assert (loss["last"], loss["min"], loss["max"]) == ("NaN", "-Infinity", 1.0)


def test_what_cant_be_read_is_named(scene: Scene, tmp_path: Path) -> None:
    """A broken configuration, a silent queue: the rest is there. Long logs are cut, and left out
    where it is not known what is secret in them."""
    experiment = scene.experiment()
    trial = scene.run(experiment)
    trial.log_path(1).write_bytes(b"x" * 6 * 1024**2)
    whole = content(scene.client.trial(1).support_bundle(tmp_path / "whole.tar.gz").path)
    assert len(whole["logs/run-1.log"]) == 5 * 1024**2
    (experiment.path / "config.json").write_text("{")
    scene.queue.down = True
    made = scene.client.trial(1).support_bundle(tmp_path / "a.tar.gz")
    found = content(made.path)
    assert [text.partition(":")[0] for text in made.missing] == ["config.json", "logs"]
    assert found["missing.txt"].startswith(b"config.json: ")
    assert json.loads(found["slurm.json"]) == []
    assert not any(name.startswith("logs/") for name in found)
