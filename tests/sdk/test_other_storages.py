"""Checkpoints in a storage that the code has named: every command finds them where they are."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from detslurm import core
from detslurm._base.trust import others_can_change, others_can_change_below
from detslurm.core._trial import collect_partial_checkpoints
from detslurm.sdk import Checkpoint, Client
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.tensorboard import event_files, specification
from detslurm.storage import Storages, location
from detslurm.store import RunLog, fold_facts, fold_trial
from detslurm.store.errors import TORN, Problem
from detslurm.store.frame import frame
from detslurm.store.reading import started_checkpoints
from tests.core import jobs
from tests.s3 import s3_server, s3_storage
from tests.sdk.scenes import Scene
from tests.store import collecting

__all__ = ["s3_server"]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """An empty store, which is this process's."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    return Scene(tmp_path / "store")


def train(storage: Path, steps: int = 3) -> list[str]:
    """An unmanaged script that names its storage; the ids of its checkpoints."""
    saved = []
    with core.init(checkpoint_storage=str(storage)) as context:
        for step in range(1, steps + 1):
            context.train.report_validation_metrics(step, {"loss": 1 / step})
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "weights").write_text("12345")
            saved.append(uuid)
        context.train.get_tensorboard_path().joinpath("events").write_text("x")
    return saved


def names(storage: Path) -> set[str]:
    """What lies in a storage."""
    return {path.name for path in storage.iterdir()}


def test_everything_finds_them_where_they_are(scene: Scene, tmp_path: Path) -> None:
    """Listed, downloaded, verified, bundled, cut down, collected, and deleted with all else."""
    storage = tmp_path / "elsewhere"
    first, second, third = train(storage)
    experiment = scene.client.experiment(1)
    found = {one.uuid: one for one in experiment.checkpoints()}
    assert [found[uuid].path for uuid in (first, second, third)] == [
        storage / uuid for uuid in (first, second, third)
    ]
    copy = found[third].download(tmp_path / "copy")
    assert (copy / "weights").read_text() == "12345"
    assert found[third].verify() is None
    bundled = experiment.bundle(tmp_path / "one.tar", checkpoints="all")
    assert set(bundled.checkpoints) == {first, second, third}
    assert experiment.disk_usage().tensorboard >= 1
    found[first].delete()
    assert (scene.root / "experiments/1/latest").resolve() == storage / third
    assert not (storage / first).exists() and (storage / second).exists()
    collecting_policy = experiment.set_gc_policy(save_trial_best=0)
    assert [one.uuid for one in collecting_policy.deleted] == [second]
    assert not (storage / second).exists()
    assert found[third].remove_files(["weights"]) == ["weights"]
    assert not (storage / third / "weights").exists()
    scene.client.experiment(1).delete()
    assert names(storage) == set()


def test_a_submitted_trial_that_names_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its last run left half done there goes, too, unless its record may be one that can't be
    read."""
    job = jobs.enter(tmp_path / "store", monkeypatch)
    storage = tmp_path / "elsewhere"
    with core.init(checkpoint_storage=str(storage)) as context:
        with context.checkpoint.store_path({"steps_completed": 1}) as (_, uuid):
            pass
        with pytest.raises(OSError), context.checkpoint.store_path({"steps_completed": 2}):
            raise OSError("the node has died")
    begun = started_checkpoints(job.trial, 1)
    assert begun == dict.fromkeys(begun, location({"type": "directory", "container_path": storage}))
    (found,) = Client(tmp_path / "store").experiment(1).checkpoints()
    assert found.path == storage / uuid and found.path.is_dir()
    half = (begun.keys() - {uuid}).pop()
    (storage / f"{half}.partial").mkdir()
    storages = Storages({"type": "shared_fs", "host_path": "/nowhere"}, tmp_path / "store")
    for reason, left in (("wrong checksum", {uuid, f"{half}.partial"}), (TORN, {uuid})):
        view = structs.replace(fold_trial(job.trial), problems=(Problem("run-1.log", 0, reason),))
        collect_partial_checkpoints(job.trial, 2, view, storages)
        assert names(storage) == left


def test_a_bundle_brings_them_to_the_storage_of_the_other_site(
    scene: Scene, tmp_path: Path
) -> None:
    """The records there say nothing of the storage here."""
    train(tmp_path / "elsewhere", steps=1)
    scene.client.experiment(1).bundle(tmp_path / "one.tar", checkpoints="all")
    other = Client(tmp_path / "other")
    done = other.import_bundle(tmp_path / "one.tar")
    (one,) = other.experiment(done.experiment_id).checkpoints()
    assert one.path == tmp_path / "other" / "checkpoints" / one.uuid
    assert one.path.is_dir() and one.verify() is None


@pytest.fixture
def linked(scene: Scene, tmp_path: Path) -> Checkpoint:
    """A checkpoint with a link to a directory, as a PyTorchTrial's to its code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("x = 1")
    with core.init(checkpoint_storage=str(tmp_path / "disk")) as context:
        context.train.report_validation_metrics(1, {"loss": 1})
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            for name in ("weights", "optimizer"):
                (path / name).write_text(name)
            (path / "code").symlink_to(tmp_path / "code")
    (one,) = scene.client.experiment(1).checkpoints()
    return one


def test_files_beside_a_link_are_removed(linked: Checkpoint, tmp_path: Path) -> None:
    """What is left is whole; nothing to remove changes nothing."""
    assert linked.remove_files(["no*"]) == [] and linked.state == "COMPLETED"
    assert linked.remove_files(["opt*", "**/*.py"]) == ["optimizer"]
    assert linked.verify() is None and (tmp_path / "code" / "model.py").exists()
    assert (linked.download(tmp_path / "copy") / "code" / "model.py").read_text() == "x = 1"


def test_a_bundle_brings_what_a_link_leads_to(linked: Checkpoint, tmp_path: Path) -> None:
    """There it is no damage that no file of it was recorded."""
    Client(tmp_path / "store").experiment(1).bundle(tmp_path / "one.tar", checkpoints="all")
    other = Client(tmp_path / "other")
    done = other.import_bundle(tmp_path / "one.tar")
    (one,) = other.experiment(done.experiment_id).checkpoints()
    assert one.path is not None and (one.path / "code" / "model.py").exists()
    assert one.verify() is None


def _names_that_are_no_utf8(path: Path) -> None:
    (path / os.fsdecode(b"d\xe9")).mkdir()
    for name in (b"caf\xe9.txt", b"d\xe9/state"):
        (path / os.fsdecode(name)).write_bytes(name)


def _a_cache(path: Path) -> None:
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "a.pyc").write_text("x")


def _links(path: Path) -> None:
    (path / "sub").mkdir()
    (gone := path.parent / "gone").mkdir()
    for name, target in (("sub/up", ".."), ("me", "me"), ("file", "/nowhere/x"), ("code", gone)):
        (path / name).symlink_to(target)


def saved(scene: Scene, storage: Path, make: Callable[[Path], None]) -> tuple[Checkpoint, Path]:
    """A checkpoint with these files, and where it is."""
    with core.init(checkpoint_storage=str(storage)) as context:
        context.train.report_validation_metrics(1, {"loss": 1})
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_text("12345")
            make(path)
    shutil.rmtree(storage / "gone", ignore_errors=True)
    return scene.client.checkpoint(uuid), storage / uuid


def test_bytecode_that_python_wrote_since_is_no_damage(scene: Scene, tmp_path: Path) -> None:
    """As where somebody's script has imported a checkpoint's code from where it lies."""

    def make(path: Path) -> None:
        (path / "code").mkdir()
        (path / "code" / "model.py").touch()

    one, path = saved(scene, tmp_path / "disk", make)
    for folder in (path, path / "code"):
        _a_cache(folder)
    assert one.verify() is None
    (path / "code" / "new.py").touch()
    assert one.verify() == "not recorded: code/new.py"


def contents(folder: Path) -> dict[Path, bytes]:
    """What can be read below a directory."""
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("make", [_names_that_are_no_utf8, _a_cache, _links])
def test_a_copy_is_as_whole_as_the_checkpoint(
    scene: Scene, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """Whatever names its files have, and wherever its links lead."""
    one, path = saved(scene, tmp_path / "disk", make)
    assert one.verify(deep=True) is None
    os.mkfifo(path / "pipe")  # nobody could copy it
    assert contents(path).items() <= contents(one.download(tmp_path / "copy")).items()
    scene.client.experiment(1).bundle(tmp_path / "one.tar", checkpoints="all")
    other = Client(tmp_path / "other")
    (uuid,) = other.import_bundle(tmp_path / "one.tar").checkpoints
    assert other.checkpoint(uuid).verify() is None
    assert contents(path).items() <= contents(tmp_path / "other" / "checkpoints" / uuid).items()


def test_a_copy_is_known_when_all_else_is_gone(scene: Scene, tmp_path: Path) -> None:
    """By what was recorded, in which names that are no UTF-8 are escaped."""
    one, path = saved(scene, tmp_path / "disk", _names_that_are_no_utf8)
    copy = one.download(tmp_path / "copy")
    (path / os.fsdecode(b"caf\xe9.txt")).unlink()
    assert one.verify() == "missing: caf\\udce9.txt"
    shutil.rmtree(path)
    assert one.download(tmp_path / "copy") == copy


def test_files_beside_names_that_are_no_utf8_are_removed(scene: Scene, tmp_path: Path) -> None:
    """What is left is whole; nothing to remove changes nothing."""
    one, path = saved(scene, tmp_path / "disk", _names_that_are_no_utf8)
    assert one.remove_files(["no*"]) == [] and one.state == "COMPLETED"
    assert one.remove_files(["weights"]) == ["weights"]
    assert one.verify() is None and not (path / "weights").exists()


def test_a_bundle_is_imported_to_a_bucket(
    scene: Scene, tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no directory grows beside the checkpoints."""
    train(tmp_path / "elsewhere", steps=1)
    scene.client.experiment(1).bundle(tmp_path / "one.tar", checkpoints="all")
    bucket = s3_storage(s3_server)
    monkeypatch.setattr("detslurm.sdk.bundle.importing.from_config", lambda section, **_: bucket)
    other = Client(tmp_path / "other")
    done = other.import_bundle(tmp_path / "one.tar")
    (one,) = other.experiment(done.experiment_id).checkpoints()
    assert bucket.resources(one.uuid).keys() == {"weights", "metadata.json"}


def test_what_others_have_put_into_a_bucket_is_not_loaded(
    scene: Scene, tmp_path: Path, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what they have added or replaced; without a record, nothing that only pickle reads."""
    bucket = s3_storage(s3_server)
    name, prefix = bucket._root.split("/", 1)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for key, value in keys.items():
        monkeypatch.setenv(key, value)
    place = {"type": "s3", "bucket": name, "prefix": prefix, "endpoint_url": s3_server}
    weights = tmp_path / "saved" / "weights"
    weights.parent.mkdir()
    weights.write_bytes(pickle.dumps(Path("x")))
    with core.init(checkpoint_storage=place) as context:
        uuid = context.checkpoint.upload(weights.parent, {"steps_completed": 1})
    bucket._fs.pipe_file(bucket._key(uuid, "code/model_def.py"), b"raise SystemExit")
    (one,) = scene.client.experiment(1).checkpoints()
    copy = one.download(tmp_path / "copy")
    assert {path.name for path in copy.iterdir() if path.is_file()} == {"weights", "metadata.json"}
    assert not (copy / "code").exists() or not list((copy / "code").iterdir())
    assert not others_can_change(copy / "weights")
    bucket._fs.pipe_file(bucket._key(uuid, "weights"), pickle.dumps(Path("y")))
    with pytest.raises(LifecycleError, match=r"weights of checkpoint .* is not the file that was"):
        one.download(tmp_path / "replaced")
    with pytest.raises(LifecycleError, match="is not the file that was saved"):
        one.load(lambda path: pytest.fail("the loader was called"))
    monkeypatch.setattr("detslurm.sdk.checkpoints.download.digests_of", lambda *_: None)
    unknown = one.download(tmp_path / "unknown")
    assert others_can_change(unknown / "weights") and others_can_change_below(unknown)
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "another"))
    with core.init(checkpoint_storage=place) as context:
        context.checkpoint.download(uuid, tmp_path / "core")
    assert others_can_change(tmp_path / "core" / "weights")


def test_what_can_not_be_reached_is_never_called_deleted(scene: Scene, tmp_path: Path) -> None:
    """A storage that is not mounted: nothing is marked, missing or left behind without a word."""
    storage = tmp_path / "disk"
    saved = train(storage)
    storage.rename(tmp_path / "unmounted")
    storage.mkdir()
    experiment = scene.client.experiment(1)
    last = experiment.checkpoints()[-1]
    assert last.state == "COMPLETED"
    assert "can't be seen" in str(last.verify()) and last.state == "UNKNOWN"
    for act in (last.delete, lambda: last.remove_files(["weights"]), experiment.delete):
        with pytest.raises(LifecycleError, match="can't be seen"):
            act()
    done = experiment.set_gc_policy(save_trial_best=0)
    assert done.deleted == () and set(done.unreachable) == set(saved[:2])
    scene.client.gc()
    assert any("2 checkpoints" in text and "can't be seen" in text for text in scene.warnings)
    facts = fold_facts(scene.store.experiment(1))
    assert not facts.checkpoints.deleted and not facts.checkpoints.problems
    assert not facts.desired.deleted
    storage.rmdir()
    (tmp_path / "unmounted").rename(storage)
    assert len(scene.client.gc().checkpoints) == 2
    scene.client.experiment(1).delete()
    assert names(storage) == set()


def test_a_storage_that_is_gone_for_good(scene: Scene, tmp_path: Path) -> None:
    """The experiment goes on request, without its files."""
    train(tmp_path / "disk", steps=1)
    (tmp_path / "disk").rename(tmp_path / "gone")
    scene.client.experiment(1).delete(force=True)
    assert fold_facts(scene.store.experiment(1)).desired.deleted
    assert len(names(tmp_path / "gone")) == 2


def test_uploads_that_broke_off_there(scene: Scene, tmp_path: Path) -> None:
    """They are collected by their exact names; what belongs to others is not looked at."""
    made = collecting.experiment(scene)
    place = location({"type": "directory", "container_path": str(tmp_path / "disk")})
    trial = made.trial(made.created().first_trial)
    run = trial.open_run({"hparams": {}, "time": 1.0, "resume": None}).run
    with RunLog.open(trial.records_path(run)) as log:
        log.append({"t": "checkpoint_started", "uuid": "half", "storage": place})
    trial.write_end(run, {"outcome": "completed"})
    for name in ("half.partial", "0a0a0a0a-0000-4000-8000-000000000000"):
        (tmp_path / "disk" / name).mkdir(parents=True)
    assert [one.kind for one in scene.client.gc().leftovers] == ["unfinished upload"]
    assert names(tmp_path / "disk") == {"0a0a0a0a-0000-4000-8000-000000000000"}


def test_records_of_a_storage_hold_no_secrets() -> None:
    """Keys, passwords and signatures stay in the code that named them."""
    section = {"type": "s3", "bucket": "b", "access_key": "AK", "secret_key": "SK", "prefix": "p",
               "endpoint_url": "https://me:hush@minio:9000/x?sig=hush"}  # fmt: skip
    assert location(section) == {
        "type": "s3",
        "bucket": "b",
        "prefix": "p",
        "endpoint_url": "https://minio:9000/x",
    }
    azure = {"type": "azure", "container": "c", "connection_string": "AccountKey=hush"}
    assert b"hush" not in frame(location(azure))


def test_the_configured_storage_needs_no_mention(scene: Scene) -> None:
    """Code that names it again changes nothing."""
    (uuid,) = train(scene.root / "checkpoints", steps=1)
    (one,) = scene.client.experiment(1).checkpoints()
    assert one.view.storage is None and one.path == scene.root / "checkpoints" / uuid


def test_tensorboard_shows_event_files_of_every_storage(scene: Scene, tmp_path: Path) -> None:
    """Those in the configured storage, and those where a trial's code has put them."""
    train(tmp_path / "elsewhere", steps=1)
    experiment = scene.client.experiment(1)
    (there,) = event_files([experiment], [])
    assert there.label == "experiment-1" and there.path is not None
    assert there.path.is_relative_to(tmp_path / "elsewhere")
    assert (there.path / "trial" / "1" / "events").read_text() == "x"
    configured = scene.root / "checkpoints" / "tensorboard" / "experiment" / "1"
    (configured / "trial" / "1").mkdir(parents=True)
    assert specification(event_files([experiment], experiment.trials())) == (
        f"experiment-1:{configured},experiment-1-2:{there.path},"
        f"trial-1:{configured}/trial/1,trial-1-2:{there.path}/trial/1"
    )
