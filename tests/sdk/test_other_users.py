"""What other users write in a shared store is theirs, whatever it says and whoever deletes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm import _access
from detslurm.sdk.disk.cleaning import Cleaning
from detslurm.store import StoreError
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
    _access.clear_cache()
    yield Scene(folder / "store")
    shutil.rmtree(folder)


def give(folder: Path, uid: int) -> None:
    """Let all of it be somebody else's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


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
    os.chown(made.path, _access.NOBODY, -1)
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
        Cleaning(shared.store, lambda _: None, dry_run=False).run(None, with_unrecorded=False)
    assert collecting.on_disk(shared) - {"tensorboard"} == {"carols"}
    assert os.geteuid() == os.getegid() == 0


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
