"""What experiments take on disk, what a file system tells of quota, what a purge endangers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from detslurm.sdk import LifecycleError
from detslurm.sdk.disk import quota as quota_module
from detslurm.sdk.disk import usage as usage_module
from detslurm.sdk.disk.purge import days_left, in_danger, warnings_of
from detslurm.sdk.disk.quota import Quota, parsed, quota_of
from detslurm.sdk.disk.usage import Usage
from detslurm.store import ExperimentDir, ExperimentRow
from detslurm.store.checkpoint_facts import mark_deleted
from tests.sdk.scenes import Scene
from tests.store import collecting
from tests.store.collecting import run


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store."""
    return Scene(tmp_path / "store")


def test_each_kind_of_file_counts(scene: Scene) -> None:
    """Checkpoints and code by their records, others by their sizes."""
    made = scene.experiment(2, about={"code_bytes": 1000})
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    trial = made.trial(made.created().first_trial)
    trial.log_path(1).write_text("x" * 30)
    (made.jobs / "slurm-7.out").write_text("y" * 12)
    made.metrics_path.write_bytes(b"z" * 70)
    (made.search / "waiting").mkdir(parents=True, exist_ok=True)
    before = scene.client.stored(1).disk_usage().metrics
    (made.search / "waiting" / "event").write_text("e" * 8)
    events = scene.checkpoints / f"tensorboard/experiment/{made.id}/trial/{trial.id}/deep/events"
    events.parent.mkdir(parents=True)
    events.write_text("t" * 9)
    records = trial.records_path(1).stat().st_size
    found = scene.client.stored(1).disk_usage()
    assert found == Usage(checkpoints=10, logs=42, metrics=before + 8, code=1000, tensorboard=9)
    assert found.metrics == 78 + records
    assert found.total == 1139 + records
    mark_deleted(made, ["a"])
    assert scene.client.stored(1).disk_usage().checkpoints == 5
    with pytest.raises(LifecycleError, match="may be writing"):
        scene.client.stored(1).delete_tensorboard_files()
    scene.client.stored(1).kill()
    other = events.parents[4] / f"{made.id}1"
    other.mkdir()
    assert [one.usage.tensorboard for one in scene.client.disk_usage()] == [9]
    scene.client.stored(1).delete_tensorboard_files()
    assert [one.usage.tensorboard for one in scene.client.disk_usage()] == [0]
    assert other.exists() and scene.client.stored(1).disk_usage().checkpoints == 5


def test_finished_experiments_are_looked_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until something changes in one of them; those that go on are looked at each time."""
    made = [collecting.experiment(scene) for _ in range(3)]
    run(scene, made[0], 0, [("a", 1, None), ("b", 2, None)])
    run(scene, made[1], 0, [("c", 1, None)])
    run(scene, made[2], 0, [("d", 1, None)], end=None)
    seen: list[int] = []
    real = usage_module.usage_of

    def usage_of(one: ExperimentDir) -> Usage:
        seen.append(one.id)
        return real(one)

    monkeypatch.setattr(usage_module, "usage_of", usage_of)

    def checkpoints() -> list[int]:
        seen.clear()
        return [one.usage.checkpoints for one in scene.client.disk_usage()]

    assert checkpoints() == [10, 5, 5] and seen == [1, 2, 3]
    assert checkpoints() == [10, 5, 5] and seen == [3]
    mark_deleted(made[0], ["a"])
    assert checkpoints() == [5, 5, 5] and seen == [1, 3]
    (scene.root / "usage.json").write_text("{broken")
    assert checkpoints() == [5, 5, 5] and seen == [1, 2, 3]


QUOTA = """\
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
/dev/sda1  1048576* 1000000 2000000       0      12       0       0       0
"""
LUSTRE = "/scratch 5242880 0 10485760 - 1200 0 0 -\n"
LONG = "/lustre/projects/vision\n               5242880* 0 10485760 - 1200 0 0 -\n"
NFS = """\
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
filer:/vol/home      20     100     120       0      12       0       0       0
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (QUOTA, (1048576 << 10, 1000000 << 10)),
        (LUSTRE, (5242880 << 10, 10485760 << 10)),
        ("/scratch 5242880 0 0 - 1200 0 0 -\n", (5242880 << 10, None)),
        (LONG, (5242880 << 10, 10485760 << 10)),
        (NFS, (20 << 10, 100 << 10)),
        ("Disk quotas for user ada (uid 1000): none\n", (None, None)),
        ("quota: cannot open\n", (None, None)),
        ("", (None, None)),
    ],
)
def test_what_quota_commands_print(text: str, found: tuple[int | None, int | None]) -> None:
    """Numbers where there are numbers; anything else is unknown."""
    assert parsed(text) == found


def test_room_and_quota_in_words(tmp_path: Path) -> None:
    """What is unknown is said to be unknown."""
    assert "quota is unknown" in Quota("/x", free=None).text
    assert "unknown free" in Quota("/x", free=None).text
    assert "(50%)" in Quota("/x", free=10, used=5, limit=10).text
    assert "no limit" in Quota("/x", free=10, used=5).text
    here = quota_of(tmp_path)
    assert here.free is not None and here.free > 0


def test_one_file_system_is_asked_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store and its checkpoints are on the same, as a rule."""
    asked: list[Path] = []
    scene.checkpoints.mkdir(parents=True)

    def quota_of(place: Path) -> Quota:
        asked.append(place)
        return Quota("/x")

    monkeypatch.setattr(quota_module, "quota_of", quota_of)
    assert scene.client.quotas() == [Quota("/x")] and asked == [scene.root]


def test_a_purge_is_announced_days_before(scene: Scene) -> None:
    """By the time of the last use: the later one of reading and writing."""
    assert days_left(used=0.0, purge_days=30, now=20 * 86400.0) == 10
    now = time.time()
    rows = [
        ExperimentRow(id=number, state=state, ended=now - days * 86400)
        for number, (days, state) in enumerate(
            [(1, "COMPLETED"), (22, "COMPLETED"), (24, "ERROR"), (90, "DELETED")], 1
        )
    ]
    rows.append(ExperimentRow(id=5, state="ACTIVE"))
    assert in_danger(rows, 30) == [3]
    assert in_danger(rows, None) == []
    made = collecting.experiment(scene)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    trial = scene.client.stored(1).trials()[0]
    saved = trial.view.checkpoints
    for name, read, written in (("a", 25, 40), ("b", 5, 40)):
        times = (now - read * 86400, now - written * 86400)
        os.utime(scene.checkpoints / name / "weights", times)
    (text,) = warnings_of(made, saved, 30)
    assert text.startswith("the site's purge may delete checkpoint a in 5 days")
    assert list(warnings_of(made, saved, None)) == []
