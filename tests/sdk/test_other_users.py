"""What other users write in a shared store is theirs, whatever it says and whoever deletes it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm._base import access
from detslurm.sdk.disk.gc import GarbageCollection
from detslurm.store import StoreError
from detslurm.store.records import Lost
from tests.sdk.scenes import Scene
from tests.store import collecting

BOB, CAROL = 12345, 23456

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for others")


@pytest.fixture
def shared() -> Iterator[Scene]:
    """A store that anybody could reach, shared with bob's group."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "store").mkdir()
    os.chown(folder / "store", -1, BOB)
    (folder / "store").chmod(0o2770)
    access.clear_cache()
    yield Scene(folder / "store")
    shutil.rmtree(folder)


def give(folder: Path, uid: int) -> None:
    """Let all of it be somebody else's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def carols(shared: Scene, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Python code that another of the group runs, in an empty directory of her own."""
    (home := shared.root.parent / "carol").mkdir(exist_ok=True)
    os.chown(home, CAROL, CAROL)
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=home, env=os.environ | {
            "DETSLURM_ROOT": str(shared.root), "HOME": str(home), "DETSLURM_SITE": "",
        }, user=CAROL, group=CAROL, extra_groups=[BOB], capture_output=True, text=True,
    )  # fmt: skip


COMMAND = "import sys; from detslurm.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("linked", [True, False])
def test_a_download_of_anothers_checkpoint_is_without_its_code(shared: Scene, linked: bool) -> None:
    """The frozen code is its owner's alone: all else comes, and it is said how to load it."""
    made = collecting.experiment(shared)
    collecting.run(shared, made, 0, [("hers", 1, 0.1)])
    files = collecting.storage(shared).path("hers")
    (files / "load_data.json").write_text("{}")
    if linked:
        (files / "code").symlink_to(made.code)
        (made.code / "helper.py").touch()
        (files / "helper.py").symlink_to(made.code / "helper.py")
    done = carols(shared, COMMAND, "checkpoint", "download", "hers", "-o", "copy")
    assert (done.returncode, done.stdout) == (0, "copy\n"), done.stderr
    assert "without its code, which is root's alone" in done.stderr
    assert "trial_class=" in done.stderr
    home = shared.root.parent / "carol"
    assert {path.name for path in (home / "copy").iterdir()} == {"weights", "load_data.json"}
    assert [path.name for path in home.iterdir() if "copy" in path.name] == ["copy"]
    assert shared.client.checkpoint("hers").download(home / "own").joinpath("code").is_dir()


def test_what_anothers_job_printed_is_for_its_owner(shared: Scene) -> None:
    """Of a trial that failed before its first run: its state and the reason are everybody's."""
    made = shared.experiment(job="7")
    (made.jobs / "slurm-7.out").write_text("module: no such module cuda\n")
    made.append(Lost(trials=(1,), reason="its job 7 failed before its run began"))
    for words in (["describe", "1"], ["describe", "1", "--json"]):
        done = carols(shared, COMMAND, "experiment", *words)
        assert done.returncode == 0, done.stderr
        assert "ERROR" in done.stdout and "failed before its run began" in done.stdout
        assert f"for its owner alone ({made.jobs / 'slurm-7.out'})" in done.stdout
        assert "no such module" not in done.stdout


def test_what_others_made_under_my_name_is_left_aside(shared: Scene) -> None:
    """Also a link to something of mine, and whatever kind it has."""
    root = shared.store.path
    me = os.geteuid()
    assert shared.store.own("local") == root / f"local-{me}"
    (root / f"local-{me}").mkdir()
    (root / f"settled-{me}.json").symlink_to("/etc/passwd")
    assert shared.store.own("local") == root / f"local-{me}"
    for name in (f"local-{me}", f"settled-{me}.json"):
        os.chown(root / name, BOB, BOB, follow_symlinks=False)
    assert shared.store.own("local") == root / f"local-{me}-2"
    assert shared.store.own("settled.json") == root / f"settled-{me}-2.json"
    for number in range(2, 10):
        (root / f"local-{me}-{number}").mkdir()
        os.chown(root / f"local-{me}-{number}", BOB, BOB)
    with pytest.raises(StoreError, match="others have made"):
        shared.store.own("local")


def test_a_name_of_ones_own_stays(shared: Scene) -> None:
    """Also where a lower one is free again; and what belongs to it is looked at, too."""
    root, me = shared.store.path, os.geteuid()
    (root / f"local-{me}").mkdir()
    os.chown(root / f"local-{me}", BOB, BOB)
    (root / f"local-{me}-2").mkdir()
    (root / f"local-{me}").rmdir()
    assert shared.store.own("local") == root / f"local-{me}-2"
    (root / f"index-{me}.parts").mkdir()
    os.chown(root / f"index-{me}.parts", BOB, BOB)
    assert shared.store.own("index.json") == root / f"index-{me}-2.json"


def test_whose_an_experiment_is(shared: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file server says it; the record is asked only where that doesn't know."""
    made = shared.experiment()
    name = made.created().by
    monkeypatch.setattr(os, "geteuid", lambda: CAROL)
    assert made.foreign_owner() is None  # root's, as the record says
    os.chown(made.path, CAROL, -1)
    assert made.foreign_owner() is None
    os.chown(made.path, BOB, -1)
    assert made.foreign_owner() == f"user {BOB}"
    away = made.path.with_name("away")
    made.path.rename(away)
    made.path.symlink_to(away)  # what it leads to is not asked
    os.chown(made.path, BOB, -1, follow_symlinks=False)
    os.chown(away, CAROL, -1)
    assert made.foreign_owner() == f"user {BOB}"
    made.path.unlink()
    away.rename(made.path)
    os.chown(made.path, access.NOBODY, -1)
    assert made.foreign_owner() is None
    monkeypatch.setattr("detslurm.store.experiment.user_name", lambda: "carol")
    assert made.foreign_owner() == name


@pytest.mark.parametrize("how", ["delete", "gc", "policy"])
def test_root_deletes_for_the_owner(shared: Scene, how: str) -> None:
    """What a user's records name may be anybody's: root removes what its owner could remove."""
    made = collecting.experiment(shared, trial_best=0, latest=2 if how == "policy" else 0)
    collecting.run(shared, made, 0, [("his-1", 1, 0.1), ("carols", 2, 0.2)])
    storage = collecting.storage(shared)
    give(made.path, BOB)
    give(storage.path("his-1"), BOB)
    give(storage.path("carols"), CAROL)
    if how == "delete":
        with pytest.raises(PermissionError, match="carols"):
            shared.client.experiment(made.id).delete()
    elif how == "policy":
        shared.client.experiment(made.id).set_gc_policy(save_trial_latest=0)
    else:
        GarbageCollection(shared.store, lambda _: None, dry_run=False).run(
            None, with_unrecorded=False
        )
    assert collecting.on_disk(shared) - {"tensorboard"} == {"carols"}
    assert os.geteuid() == os.getegid() == 0


def test_anothers_code_is_no_archive(shared: Scene) -> None:
    """It is its owner's alone, and no broken file is left."""
    shared.experiment()
    done = carols(shared, COMMAND, "experiment", "download-model-def", "1", "-o", "new")
    assert done.returncode == 1 and "the code of experiment 1 is root's alone" in done.stderr
    assert not (shared.root.parent / "carol" / "new").exists()


FILES_SEEN = """
from detslurm.sdk import Client
from detslurm.sdk.tensorboard import event_files
client = Client()
found = event_files([client.stored(1)], [client.stored_trial(1)])
print([one.path is not None for one in found])
"""


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_event_files_that_are_closed_count_as_missing(shared: Scene, mode: int) -> None:
    """A board of the metrics is shown in their place, not an empty one."""
    collecting.run(shared, collecting.experiment(shared), 0, [("hers", 1, 0.1)])
    folder = shared.checkpoints / "tensorboard" / "experiment" / "1"
    (folder / "trial" / "1").mkdir(parents=True)
    folder.chmod(mode)
    done = carols(shared, FILES_SEEN)
    assert done.stdout == f"{[mode == 0o755] * 2}\n", done.stderr


def test_links_cost_a_list_nothing(shared: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that may not act for others, as in many containers, lists their checkpoints."""
    made = collecting.experiment(shared)
    collecting.run(shared, made, 0, [("his", 1, 0.1)])
    give(made.path, BOB)

    def refuse(groups: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setgroups", refuse)
    assert [one.uuid for one in shared.client.stored(made.id).checkpoints()] == ["his"]
    assert [one.uuid for one in shared.client.checkpoints()] == ["his"]
    assert os.geteuid() == os.getegid() == 0 and shared.warnings == []


@pytest.mark.parametrize(
    ("what", "next_refusal"),
    [("runner.Runner", "this is not a job"), ("agent.Agent", "was never started")],
)
@pytest.mark.parametrize("owner", [BOB, CAROL])
def test_jobs_run_no_code_of_others(
    shared: Scene, what: str, next_refusal: str, owner: int
) -> None:
    """Who owns the directory of all experiments can put another in the place of one."""
    made = shared.experiment()
    give(made.path, owner)
    module, name = what.split(".")
    code = f"import pathlib, detslurm.exec.{module} as m; m.{name}(pathlib.Path(%r), 1, 1)"
    done = subprocess.run(
        [sys.executable, "-c", code % str(made.path)],
        user=CAROL, group=CAROL, extra_groups=[BOB], capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    said = f"{made.path} belongs to user {BOB}: jobs of user {CAROL} don't run its code"
    assert (said if owner == BOB else next_refusal) in done.stderr
