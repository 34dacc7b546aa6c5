"""On a full file system jobs can be ended and space be freed: what that takes is kept back."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.sdk.submission.context import collect, freeze
from detslurm.store import StoreError, StoreFull
from tests.cluster.namespaces import may_unshare
from tests.sdk.scenes import Scene
from tests.store.faults import failing

CACHE = "module-cache-cpython-311-0-1"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Scene]:
    """A store with a job that runs and a checkpoint of one that is over, and no block left."""
    if not may_unshare():
        pytest.skip("a full disk: only root can mount a small one, and not in every container")
    scene = Scene(tmp_path / "store")
    scene.root.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "small", str(scene.root)], check=True
    )
    try:
        over = scene.experiment(job="6")
        scene.run(over, losses=[0.5], checkpoint="some", end="completed", ref="6")
        scene.run(scene.experiment(job="7"))
        scene.queue.put("7", "RUNNING")
        (scene.root / CACHE).write_bytes(bytes(1 << 18))
        with (scene.root / "ballast").open("wb") as ballast, pytest.raises(OSError):
            while True:
                ballast.write(bytes(1 << 16))
                ballast.flush()
        yield scene
    finally:
        subprocess.run(["umount", "--lazy", str(scene.root)], check=True)


def test_what_is_rebuilt_makes_room_for_facts(full: Scene) -> None:
    """They are few hundred bytes, and come before anything is ended or removed."""
    assert full.client.experiment(2).kill()
    assert full.queue.jobs["7"].state == "CANCELLED" and not (full.root / CACHE).exists()
    assert full.client.experiment(2).state == "CANCELED"
    full.client.experiment(1).delete()
    assert not (full.root / "checkpoints" / "some").exists()


def test_without_any_room_jobs_are_ended_all_the_same(full: Scene) -> None:
    """Those that write on are what fills it."""
    (full.root / CACHE).replace(full.root / "other")
    with pytest.raises(StoreFull):
        full.client.experiment(2).kill()
    assert full.queue.jobs["7"].state == "CANCELLED"


@pytest.mark.parametrize("refusal", [errno.EROFS, errno.EPERM])
def test_jobs_are_ended_where_nothing_can_be_recorded(tmp_path: Path, refusal: int) -> None:
    """The store is mounted to be read, or has no hard links: they end, and the error says what was
    not done."""
    scene = Scene(tmp_path / "store")
    scene.run(scene.experiment(job="7"))
    scene.queue.put("7", "RUNNING")
    experiment = scene.client.experiment(1)
    with (
        failing("link", refusal, times=9),
        pytest.raises(StoreError, match=r"Read-only|hard links"),
    ):
        experiment.kill()
    assert scene.queue.jobs["7"].state == "CANCELLED"
    [warning] = scene.warnings
    assert warning.startswith("experiment 1 can't be recorded as killed: only the jobs that")


def test_code_that_does_not_fit_is_not_blamed(full: Scene, tmp_path: Path) -> None:
    """The error names the file system that is full, not the user's own."""
    (full.root / CACHE).unlink()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "large").write_bytes(bytes(1 << 20))
    stage = full.root / "stage"
    stage.mkdir()
    with pytest.raises(StoreFull, match=f"left on the file system of {stage}"):
        freeze(collect(tmp_path / "code"), stage)
