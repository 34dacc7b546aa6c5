"""`Client.gc()`: what crashes have left goes, and what is unknown, young or in use stays."""

from __future__ import annotations

import errno
import itertools
import os
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from detslurm.sdk.disk.gc import Collected
from detslurm.storage import SharedFS
from detslurm.store import ExperimentDir, ExperimentFacts, RunLog, fold_facts, fs
from detslurm.store.checkpoint_facts import keep, mark_deleted
from detslurm.store.probing import probe
from detslurm.store.records import Intent, Lost, Submitted
from tests.sdk.scenes import Scene
from tests.store import collecting
from tests.store.collecting import on_disk, run
from tests.store.faults import deaths, killed_at, refusing


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store."""
    return Scene(tmp_path / "store")


def kinds(done: Collected) -> dict[str, str]:
    """What was found, by the last part of its path."""
    return {Path(one.path).name: one.kind for one in done.leftovers}


def begins(scene: Scene, made: ExperimentDir, index: int, *uuids: str, end: str | None) -> None:
    """A run that has begun to save these."""
    trial = made.trial(made.created().first_trial + index)
    number = trial.open_run({"hparams": {}, "time": 1.0, "resume": None}).run
    with RunLog.open(trial.records_path(number)) as log:
        for one in uuids:
            log.append({"t": "checkpoint_started", "uuid": one})
            scene.checkpoint(f"{one}.partial")
    if end is not None:
        trial.write_end(number, {"outcome": end})


def age(path: Path, days: float = 2.0) -> None:
    """Let a path have been changed for the last time some days ago."""
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def test_uploads_that_broke_off_and_deletions_that_did(scene: Scene) -> None:
    """They go once their run is over; a dry run only names them; a second run finds nothing."""
    made = collecting.experiment(scene, trials=2, latest=5)
    begins(scene, made, 0, "broken", end="restart")
    begins(scene, made, 1, "writing", end=None)
    run(scene, made, 0, [("whole", 1, 0.5)], end="preempted")
    run(scene, made, 0, [("gone", 2, 0.6), ("last", 3, None)])
    mark_deleted(made, ["gone"])
    everything = on_disk(scene)
    found = scene.client.gc(dry_run=True)
    assert kinds(found) == {"broken.partial": "unfinished upload", "gone": "deleted checkpoint"}
    assert found.freed == 10 and on_disk(scene) == everything
    done = scene.client.gc()
    assert done == found
    assert on_disk(scene) == {"writing.partial", "whole", "last"}
    assert scene.client.gc() == Collected()


def test_what_policies_do_not_keep_goes_too(scene: Scene) -> None:
    """Of an experiment whose jobs were killed, for example; others are not asked for."""
    made = [collecting.experiment(scene, trial_best=0) for _ in range(2)]
    run(scene, made[0], 0, [("a", 1, None), ("b", 2, None)], end="killed")
    run(scene, made[1], 0, [("c", 1, None), ("d", 2, None)], end="killed")
    assert [one.uuid for one in scene.client.gc([1]).checkpoints] == ["a"]
    assert on_disk(scene) == {"b", "c", "d"}
    assert [one.uuid for one in scene.client.gc().checkpoints] == ["c"]


def test_scripts_run_by_hand_keep_all_until_a_policy_is_set(scene: Scene) -> None:
    """The defaults are for experiments that were submitted."""
    made = scene.experiment(about={"managed": False})
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    assert scene.client.gc() == Collected()
    scene.set_policy(made, collecting.policy(trial_best=0))
    assert [one.uuid for one in scene.client.gc().checkpoints] == ["a"]
    assert on_disk(scene) == {"b"}


def test_what_a_run_that_goes_on_has_claimed_stays(scene: Scene) -> None:
    """Though it was deleted in the moment in which the run began."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)], end="preempted")
    run(scene, made, 0, [], end=None, resume="a")
    mark_deleted(made, ["a"])
    assert scene.client.gc() == Collected() and on_disk(scene) == {"a"}
    made.append(Lost(trials=(made.created().first_trial,)))
    done = scene.client.gc()
    assert kinds(done) == {"a": "deleted checkpoint"} and done.freed == 5
    assert on_disk(scene) == set()


def test_what_can_not_be_read_may_name_anything(scene: Scene) -> None:
    """A checkpoint whose own record is broken is no unfinished upload."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    log = made.trial(made.created().first_trial).records_path(1)
    log.write_bytes(log.read_bytes().replace(b'"t":"checkpoint",', b'"t":"checkpoXnt",'))
    assert scene.client.gc() == Collected() and on_disk(scene) == {"a"}


def test_temporary_files_of_the_dead(scene: Scene) -> None:
    """Old ones go, in every directory that has them; young ones and those of the living stay."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [])
    trial = made.trial(made.created().first_trial).path
    for folder in (scene.root, scene.root / "ledger", made.path, made.log.path, trial):
        old = Path(
            fs.temporary_name(str(folder / "000002.json")).replace(str(os.getpid()), "1" * 9)
        )
        old.write_text("x")
        age(old)
        Path(fs.temporary_name(str(folder / "young"))).write_text("x")
        living = Path(fs.temporary_name(str(folder / "living")))
        living.write_text("x")
        age(living)
    staged = Path(fs.temporary_name(str(made.path / "code")).replace(str(os.getpid()), "1" * 9))
    (staged / "deep").mkdir(parents=True)
    (staged / "deep" / "train.py").write_text("12345")
    age(staged)
    done = scene.client.gc()
    assert set(kinds(done).values()) == {"temporary file"}
    assert len(done.leftovers) == 6 and done.freed == 10
    left = [path.name for path in scene.root.rglob(".*.tmp")]
    assert len(left) == 10 and all("young" in name or "living" in name for name in left)


def test_what_no_record_names_goes_on_demand_alone(scene: Scene) -> None:
    """Another store may use the same storage; what is young or has no checkpoint's name stays."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    old, half, young = str(uuid.uuid4()), str(uuid.uuid4()), str(uuid.uuid4())
    for name in (old, f"{half}.partial", "my-notes"):
        age(scene.checkpoint(name))
    scene.checkpoint(young)
    done = scene.client.gc()
    assert (done.leftovers, done.unrecorded) == ((), 2)
    done = scene.client.gc(unrecorded=True)
    assert set(kinds(done)) == {old, f"{half}.partial"}
    assert on_disk(scene) == {"a", young, "my-notes"}


def test_nothing_is_unrecorded_while_an_experiment_cant_be_read(scene: Scene) -> None:
    """It may have the record."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    old = str(uuid.uuid4())
    age(scene.checkpoint(old))
    (made.path / "config.json").write_text("{")
    assert scene.client.gc(unrecorded=True).leftovers == ()
    assert any("left alone" in text for text in scene.warnings)
    assert on_disk(scene) == {"a", old}


def test_one_storage_under_two_paths(scene: Scene, tmp_path: Path) -> None:
    """What one experiment saved is known, by whatever path another one calls the storage."""
    scene.storage = tmp_path / "disk"
    first, other = str(uuid.uuid4()), str(uuid.uuid4())
    run(scene, collecting.experiment(scene), 0, [(first, 1, None)])
    (tmp_path / "alias").symlink_to(scene.storage)
    scene.storage = tmp_path / "alias"
    run(scene, collecting.experiment(scene), 0, [(other, 1, None)])
    for name in (first, other):
        age(scene.storage / name)
    assert scene.client.gc(unrecorded=True) == Collected()
    assert on_disk(scene) == {first, other}


def test_a_storage_that_vanishes_for_a_moment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error between two looks at it makes no checkpoint unknown."""
    scene.storage = tmp_path / "disk"
    mine = str(uuid.uuid4())
    run(scene, collecting.experiment(scene), 0, [(mine, 1, None)])
    age(scene.storage / mine)
    looks = iter([True])
    monkeypatch.setattr(SharedFS, "is_visible", lambda self, home: next(looks, False))
    assert scene.client.gc(unrecorded=True) == Collected()
    assert on_disk(scene) == {mine}


def test_a_submission_that_died_has_saved_nothing(scene: Scene) -> None:
    """Before its first fact no job of it began: what nobody names is found all the same."""
    run(scene, collecting.experiment(scene), 0, [("a", 1, None)])
    (scene.store.new_experiment().path / "code").mkdir()
    reserved = scene.store.new_experiment()
    scene.store.reserve_trials(reserved.id, 1)
    reserved.write_config(scene.store.experiment(1).config(), "")
    reserved.append_next(Submitted(request={}), 1)  # of a custom search
    old = str(uuid.uuid4())
    age(scene.checkpoint(old))
    assert scene.client.gc().unrecorded == 1
    assert kinds(scene.client.gc(unrecorded=True)) == {old: "unrecorded checkpoint"}
    assert scene.warnings == [] and on_disk(scene) == {"a"}


@pytest.mark.parametrize("broken", ["log", "fact", "ledger"])
def test_nothing_is_unrecorded_while_a_record_is_broken(scene: Scene, broken: str) -> None:
    """It may be the one that names the checkpoint."""
    made = collecting.experiment(scene)
    mine = str(uuid.uuid4())
    run(scene, made, 0, [(mine, 1, None)])
    age(scene.checkpoints / mine)
    paths = {
        "log": made.trial(made.created().first_trial).records_path(1),
        "fact": made.log.name(2),
        "ledger": scene.store.ledger.log.name(1),
    }
    data = paths[broken].read_bytes()
    paths[broken].write_bytes(data.replace(b'"', b"'"))
    strange = str(uuid.uuid4())
    run(scene, collecting.experiment(scene), 0, [("other", 1, None)])
    age(scene.checkpoint(strange))
    assert scene.client.gc(unrecorded=True).leftovers == ()
    assert on_disk(scene) == {mine, strange, "other"}


def test_a_deletion_that_broke_off_is_finished(scene: Scene) -> None:
    """Everything of the experiment goes, as if nobody had interrupted it."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    made.append(Intent(intent="delete"))
    assert [one.kind for one in scene.client.gc(dry_run=True).leftovers] == ["interrupted deletion"]
    scene.client.gc()
    assert on_disk(scene) == set() and not (made.path / "config.json").exists()
    assert scene.client.gc() == Collected()


def test_a_deleted_experiment_that_was_listed_is_done_with(scene: Scene) -> None:
    """A list writes nothing into it, and nothing was interrupted."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    scene.client.stored(made.id).delete()
    list(scene.client.rows())
    assert scene.client.gc() == Collected()


@pytest.mark.parametrize("name", ["metrics.h5", "trials.json", "summary.json", "latest"])
def test_what_came_late_to_a_deleted_experiment_goes(scene: Scene, name: str) -> None:
    """A runner that was killed while it compacted, or somebody who read it, has left that."""
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    scene.client.stored(made.id).delete()
    (made.path / name).symlink_to("nowhere")
    assert [one.kind for one in scene.client.gc().leftovers] == ["interrupted deletion"]
    assert [path.name for path in made.path.iterdir()] == ["facts"]
    assert scene.client.gc() == Collected()


def test_gc_finishes_what_a_killed_deletion_began(tmp_path: Path) -> None:
    """At whichever call it died: either nothing was deleted yet, or all is in the end."""

    def two(name: str) -> tuple[Scene, ExperimentDir]:
        scene = Scene(tmp_path / name)
        made = collecting.experiment(scene, latest=9)
        run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
        return scene, made

    whole, _ = two("whole")
    moments = deaths(whole.client.stored(1).delete, tmp_path / "whole")
    for call, moment in moments:
        scene, made = two(f"store-{call}-{moment}")
        killed = killed_at(scene.client.stored(1).delete, call, moment)
        assert killed == ((call, moment) != moments[-1])
        if fold_facts(made).desired.deleted:
            scene.client.gc()
            assert on_disk(scene) == set()
            assert {path.name for path in made.path.iterdir()} == {"facts"}
        else:
            assert killed and on_disk(scene) == {"a", "b"}
            assert scene.client.gc() == Collected()


def test_what_a_dead_process_held_is_let_go(scene: Scene) -> None:
    """A download that was killed protects its checkpoint until somebody collects."""
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    child = os.fork()
    if child == 0:
        from detslurm._base.process import Identity

        keep(made, ["a"], by="download by ada", holder=Identity.own())
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    scene.client.gc()
    assert on_disk(scene) == {"b"}


@pytest.mark.parametrize("unmounted", [True, False])
def test_a_storage_that_is_not_visible_is_left_alone(
    scene: Scene, tmp_path: Path, unmounted: bool
) -> None:
    """An empty directory outside of the store may be a disk that is not mounted."""
    scene.storage = tmp_path / "disk"
    scene.storage.mkdir()
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    if unmounted:
        scene.storage.rename(tmp_path / "elsewhere")
        scene.storage.mkdir()
    assert len(scene.client.gc().checkpoints) == (0 if unmounted else 1)


def test_a_storage_that_was_closed_ends_no_pass(scene: Scene, tmp_path: Path) -> None:
    """Its experiments are over and known: what crashes have left elsewhere goes all the same."""
    scene.storage = tmp_path / "hers"
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None)])
    scene.storage = None
    mine = collecting.experiment(scene)
    assert scene.client.gc().leftovers == ()
    begins(scene, mine, 0, "broken", end="restart")
    with refusing(tmp_path / "hers"):
        done = scene.client.gc()
    assert kinds(done) == {"broken.partial": "unfinished upload"}
    assert on_disk(scene) == set()
    assert [text for text in scene.warnings if "Permission denied" in text] == [
        f"the files in {tmp_path / 'hers'} are skipped: Permission denied"
    ]


def test_what_can_not_be_removed_frees_nothing(scene: Scene) -> None:
    """It is said, and not counted; the next pass tries again."""
    begins(scene, collecting.experiment(scene), 0, "broken", end="restart")
    refused = OSError(errno.EROFS, "Read-only file system")
    with mock.patch.object(SharedFS, "discard", side_effect=refused):
        done = scene.client.gc()
    assert on_disk(scene) == {"broken.partial"}
    assert (done.leftovers, done.freed) == ((), 0)
    assert any("broken.partial can't be removed: Read-only" in text for text in scene.warnings)
    assert kinds(scene.client.gc()) == {"broken.partial": "unfinished upload"}
    assert on_disk(scene) == set()


def test_finished_experiments_are_read_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they change, or something lies in the storage that was deleted; those that go on, that
    somebody protects, or that have a temporary file are read each time."""
    made = [collecting.experiment(scene, latest=1) for _ in range(5)]
    names = ["a", "b", "c", "d"]
    for experiment, name in zip(made, names, strict=False):
        run(scene, experiment, 0, [(f"{name}1", 1, None), (f"{name}2", 2, None)])
    run(scene, made[4], 0, [("e1", 1, None)], end=None)
    keep(made[2], ["c2"], by="a model")
    temporary = Path(fs.temporary_name(str(made[3].path / "x")))
    temporary.touch()
    read: list[int] = []
    real = fold_facts

    def folded(directory: ExperimentDir) -> ExperimentFacts:
        read.append(directory.id)
        return real(directory)

    monkeypatch.setattr("detslurm.sdk.disk.gc.fold_facts", folded)

    def collected(**chosen: Any) -> set[int]:
        read.clear()
        scene.client.gc(**chosen)
        return set(read)

    assert collected() == {1, 2, 3, 4, 5} and on_disk(scene) == {"a2", "b2", "c2", "d2", "e1"}
    collected()  # a pass that finds nothing any more
    assert collected() == {3, 4, 5} == collected(dry_run=True)
    assert collected(experiment_ids=[1]) == {1}
    scene.client.stored(1).set_gc_policy(save_trial_latest=0)
    scene.checkpoint("b1")
    temporary.unlink()
    assert collected() == {1, 2, 3, 4, 5} and on_disk(scene) == {"b2", "c2", "d2", "e1"}
    collected()
    assert collected() == {3, 5}
    strange = scene.checkpoint(str(uuid.uuid4()))
    age(strange)
    assert scene.client.gc().unrecorded == 1
    scene.store.own("settled.json").write_text("{broken")
    assert collected() == {1, 2, 3, 4, 5}


def test_what_killed_submissions_and_doctors_leave(scene: Scene) -> None:
    """Wherever they died: a day later all is gone but the numbers, which are not given again."""
    before = {*scene.store.path.iterdir()}
    deadly = itertools.count(1)
    while killed_at(lambda: scene.experiment(job=None), next(deadly), "after"):
        pass
    for call in (5, 40):
        assert killed_at(lambda: probe(scene.root), call, "after")
    killed, strange = scene.root / "selftest-0123456789ab", scene.root / "selftest-mine"
    (killed / "store" / "experiments").mkdir(parents=True)
    strange.mkdir()
    assert any(one.name.startswith(".probe") for one in scene.root.iterdir())
    found = {int(path.name): {*path.rglob("*")} for path in scene.root.glob("experiments/*")}
    scene.client.gc()
    assert len(found) > 10
    assert killed.exists() and all(path.exists() for young in found.values() for path in young)
    then = time.time() - 2 * 86400
    for folder, _, files in os.walk(scene.root, topdown=False):
        for path in (*(f"{folder}/{name}" for name in files), folder):
            os.utime(path, (then, then))
    shown = scene.client.gc(dry_run=True).leftovers
    kinds = {"interrupted submission", "temporary file", "interrupted check"}
    assert kinds == {one.kind for one in shown}
    assert {one.path for one in scene.client.gc().leftovers} == {one.path for one in shown}
    for number in found:
        made = ExperimentDir(scene.store, number)
        assert not [*made.path.iterdir()] or (made.created().trials and made.config())
    assert {*scene.store.path.iterdir()} - before <= {scene.root / "settled.json", strange}
    assert not [*scene.root.rglob("*.tmp")]
    assert not scene.client.gc().leftovers
    assert scene.experiment().id == max(found) + 1
