"""A store that was copied keeps to itself; one that was moved finds all that it has."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from detslurm.exec.unmanaged_claims import configuration
from detslurm.storage import SharedFS, from_config
from detslurm.store import ExperimentDir
from detslurm.store.records import Created, Environment
from tests.sdk.scenes import YAML, Scene, resolved

UUID, LATER = (str(uuid4()) for _ in range(2))


@pytest.fixture
def trained(scene: Scene) -> ExperimentDir:
    """An experiment that is over, with one checkpoint in the store."""
    experiment = scene.experiment(job="7")
    scene.run(experiment, losses=[0.5], checkpoint=UUID, end="completed")
    scene.queue.jobs.clear()
    # Both leave what they know in files of the store.
    assert [one.uuid for one in scene.client.checkpoints()] == [UUID]
    scene.client.gc()
    return experiment


@pytest.mark.usefixtures("trained")
def test_what_a_copy_deletes_is_its_own(scene: Scene, tmp_path: Path) -> None:
    """Backups are copies: who tidies up in one must not reach into the other."""
    copy = Scene(Path(shutil.copytree(scene.root, tmp_path / "copy")), scene.queue)
    scene.run(scene.experiment(job="8"), losses=[0.5], checkpoint=LATER, end="completed", ref="8")
    (found,) = copy.client.checkpoints()
    assert found.path == copy.root / "checkpoints" / UUID
    copy.client.gc(unrecorded=True)
    copy.client.experiment(1).delete()
    assert not (copy.root / "checkpoints" / UUID).exists()
    for uuid in (UUID, LATER):
        assert (scene.root / "checkpoints" / uuid / "weights").exists()
    assert scene.client.checkpoint(UUID).verify() is None


@pytest.fixture(params=["now", "of old"])
def own_script(request: pytest.FixtureRequest, scene: Scene) -> ExperimentDir:
    """The experiment of a batch script of the user's own that is over, with one checkpoint."""
    config = configuration(scene.store, ["train.py"])
    if request.param == "of old":
        place = str(scene.root / "checkpoints")
        config["checkpoint_storage"] = {"type": "directory", "container_path": place}
    created = Created(name="mine", metric="loss", trials=1, managed=False)
    experiment = scene.store.create_experiment(created, config)
    scene.run(experiment, losses=[0.5], checkpoint=UUID, end="completed")
    scene.client.gc()
    return experiment


@pytest.mark.usefixtures("own_script")
def test_a_copy_keeps_to_itself_with_own_scripts(scene: Scene, tmp_path: Path) -> None:
    """What the original has saved since the copy was made is not the copy's to judge."""
    copy = Scene(Path(shutil.copytree(scene.root, tmp_path / "copy")), scene.queue)
    later = scene.store.create_experiment(
        Created(name="mine", metric="loss", trials=1, managed=False),
        configuration(scene.store, ["train.py"]),
    )
    scene.run(later, losses=[0.5], checkpoint=LATER, end="completed")
    os.utime(scene.root / "checkpoints" / LATER, (1e9, 1e9))
    assert copy.client.gc(unrecorded=True).leftovers == ()
    copy.client.experiment(1).delete()
    assert not (copy.root / "checkpoints" / UUID).exists()
    for uuid in (UUID, LATER):
        assert (scene.root / "checkpoints" / uuid / "weights").exists()


@pytest.mark.usefixtures("own_script")
def test_a_moved_store_has_the_checkpoints_of_own_scripts(scene: Scene, tmp_path: Path) -> None:
    moved = Scene(scene.root.rename(tmp_path / "moved"), scene.queue)
    (checkpoint,) = moved.client.checkpoints()
    assert checkpoint.path == moved.root / "checkpoints" / UUID
    assert (checkpoint.download(tmp_path / "here") / "weights").exists()
    moved.client.experiment(1).delete()
    assert not (moved.root / "checkpoints" / UUID).exists()


@pytest.mark.parametrize("name", ["checkpoints", "elsewhere"])
def test_a_directory_that_a_user_configures_stays(scene: Scene, tmp_path: Path, name: str) -> None:
    """Also one whose name is that of the store's."""
    place = tmp_path / "data" / name
    text = YAML + f"checkpoint_storage: {{type: directory, container_path: {place}}}\n"
    made = scene.store.new_experiment()
    made.write_config(resolved(text), text)
    moved = Scene(scene.root.rename(tmp_path / "moved")).store
    assert storage_path(ExperimentDir(moved, made.id).config()) == place


@pytest.mark.usefixtures("trained")
def test_a_moved_store_has_its_checkpoints(scene: Scene, tmp_path: Path) -> None:
    """Where the records name its old place, too."""
    moved = Scene(scene.root.rename(tmp_path / "moved"), scene.queue)
    (checkpoint,) = moved.client.checkpoints()
    assert checkpoint.path == moved.root / "checkpoints" / UUID
    assert checkpoint.verify() is None
    assert (checkpoint.download(tmp_path / "here") / "weights").exists()
    assert str(scene.root) not in json.dumps(moved.client.experiment(1).config)


def test_a_moved_store_keeps_the_environments_that_its_jobs_stage(
    scene: Scene, tmp_path: Path
) -> None:
    """They are told from those that nobody stages by their names."""
    folder = scene.root / "environments"
    staged = Environment(archive=str(folder / "used.tar"), prefix="/venv", size=1, files=1)
    scene.experiment(about={"environment": staged})
    folder.mkdir()
    for name in ("used.tar", "unused.tar"):
        (folder / name).touch()
        os.utime(folder / name, (1e9, 1e9))
    moved = Scene(scene.root.rename(tmp_path / "moved"), scene.queue)
    (leftover,) = moved.client.gc().leftovers
    assert leftover.path == str(moved.root / "environments" / "unused.tar")
    shown = moved.client.experiment(1).environment
    assert shown is not None and Path(shown.archive).exists()


def test_new_jobs_work_in_the_copy(scene: Scene, tmp_path: Path) -> None:
    """Those of a trial whose job is gone: the original is not theirs."""
    scene.experiment(job="7")
    copy = Scene(Path(shutil.copytree(scene.root, tmp_path / "copy")), scene.queue)
    copy.queue.jobs.clear()
    copy.client.experiment(1).activate()
    (request,) = copy.queue.requests
    assert request.folder == copy.root / "experiments" / "1" / "jobs"
    assert str(scene.root) not in " ".join(request.command)


@pytest.mark.parametrize(
    ("given", "below"),
    [
        ({}, "checkpoints"),
        ({"host_path": "{root}/deep", "storage_path": "{root}/deep/ck"}, "deep/ck"),
        ({"host_path": "{root}/$OF_A_NODE"}, "$OF_A_NODE/checkpoints"),
        ({"host_path": "/elsewhere"}, None),
        ({"host_path": "{root}/../beside"}, None),
    ],
)
def test_paths_in_the_store_are_its_own(
    scene: Scene, tmp_path: Path, given: dict[str, str], below: str | None
) -> None:
    """However they were written; all others stay as they are."""
    section = {"type": "shared_fs", "host_path": "{root}", "storage_path": "checkpoints", **given}
    section = {key: value.format(root=scene.root) for key, value in section.items()}
    made = scene.store.new_experiment()
    made.write_config({"checkpoint_storage": section}, "")
    assert storage_path(made.config()) == storage_path({"checkpoint_storage": section})
    moved = Scene(scene.root.rename(tmp_path / "moved")).store
    found = storage_path(ExperimentDir(moved, made.id).config())
    there = storage_path({"checkpoint_storage": section}) if below is None else moved.path / below
    assert found == there


def storage_path(config: dict[str, Any]) -> Path:
    """Where a configuration keeps checkpoints."""
    found = from_config(config["checkpoint_storage"])
    assert isinstance(found, SharedFS)
    return found.base


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
