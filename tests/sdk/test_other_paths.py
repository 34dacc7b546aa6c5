"""A store that was copied keeps to itself; one that was moved finds all that it has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from detslurm.store import ExperimentDir
from tests.sdk.scenes import Scene

UUID = "0b5a0a4e-7d1b-4a52-9a8a-6a7c1c0f4f2e"


@pytest.fixture
def trained(scene: Scene) -> ExperimentDir:
    """An experiment that is over, with one checkpoint in the store."""
    experiment = scene.experiment(job="7")
    scene.run(experiment, losses=[0.5], checkpoint=UUID, end="completed")
    scene.queue.jobs.clear()
    return experiment


@pytest.mark.usefixtures("trained")
def test_what_a_copy_deletes_is_its_own(scene: Scene, tmp_path: Path) -> None:
    """Backups are copies: who tidies up in one must not reach into the other."""
    copy = Scene(Path(shutil.copytree(scene.root, tmp_path / "copy")), scene.queue)
    copy.client.experiment(1).delete()
    assert not (copy.root / "checkpoints" / UUID).exists()
    assert (scene.root / "checkpoints" / UUID / "weights").exists()
    assert scene.client.checkpoint(UUID).verify() is None


@pytest.mark.usefixtures("trained")
def test_a_moved_store_has_its_checkpoints(scene: Scene, tmp_path: Path) -> None:
    """Where the records name its old place, too."""
    moved = Scene(scene.root.rename(tmp_path / "moved"), scene.queue)
    checkpoint = moved.client.checkpoint(UUID)
    assert checkpoint.path == moved.root / "checkpoints" / UUID
    assert checkpoint.verify() is None
    assert (checkpoint.download(tmp_path / "here") / "weights").exists()
    assert str(scene.root) not in json.dumps(moved.client.experiment(1).config)


def test_a_copy_leaves_the_jobs_of_the_original_alone(scene: Scene, tmp_path: Path) -> None:
    """They write to the other store, whatever becomes of the copy."""
    experiment = scene.experiment(job="7")
    scene.run(experiment)
    scene.queue.put("7", "RUNNING", folder=str(experiment.jobs))
    copy = Scene(Path(shutil.copytree(scene.root, tmp_path / "copy")), scene.queue)
    copy.client.experiment(1).kill()
    assert scene.queue.jobs["7"].state == "RUNNING"
    assert "works in" in copy.warnings[0]
    scene.client.experiment(1).kill()
    assert scene.queue.jobs["7"].state != "RUNNING"
