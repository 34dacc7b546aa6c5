"""The one cache of the queue: how often it asks, and what it answers meanwhile."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from detslurm.sdk.jobs.paced_queues import PacedQueues
from detslurm.sdk.jobs.status import JobRef
from detslurm.slurm import JobInfo
from tests.cluster.waiting import wait_for
from tests.sdk.scenes import Scene

JOB, NEW = JobRef("slurm", "8"), JobRef("slurm", "9")


class Clock:
    """Time that passes when a test sets it."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.queue.put("8", "RUNNING")
    return scene


@pytest.fixture
def clock() -> Clock:
    return Clock()


def paced(scene: Scene, clock: Clock, patience: float = 60.0) -> PacedQueues:
    return PacedQueues(lambda name: scene.queue, scene.warnings.append, clock, patience)


def test_callers_do_not_wait_for_a_busy_scheduler(
    scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has answered, the answer before counts; meanwhile it is not asked again."""
    ready, answer, calls = Event(), scene.queue.queue, []

    def slow(*, partition: str | None = None) -> list[JobInfo]:
        calls.append(partition)
        assert ready.wait(120)
        return answer()

    queues = paced(scene, clock, patience=0.05)
    wait_for(lambda: queues.query([JOB]).jobs.keys() == {JOB}, what="the first answer")
    wait_for(lambda: not queues.due, what="the end of the first question")
    monkeypatch.setattr(scene.queue, "queue", slow)
    clock.now += 30
    assert queues.query([JOB]).jobs.keys() == {JOB}
    clock.now += 60
    scene.warnings.clear()
    assert queues.query([JOB]).jobs[JOB].state == "RUNNING" and not queues.due
    assert scene.warnings == ["slurm has not answered yet; states may be old"]
    scene.queue.put("8", "PENDING")
    ready.set()
    wait_for(lambda: queues.due, what="the answer")
    assert queues.query([JOB]).jobs[JOB].state == "PENDING"
    assert len(calls) == 1


def test_a_job_that_is_newer_than_the_listing_is_unknown(scene: Scene, clock: Clock) -> None:
    """It is not taken for lost, and the next question is a listing, not one about its end."""
    queues = paced(scene, clock)
    assert queues.query([JOB]).jobs.keys() == {JOB}
    scene.queue.put("9", "PENDING")
    clock.now += 10
    assert queues.query([JOB]).unreachable == frozenset()
    found = queues.query([JOB, NEW])
    assert (set(found.jobs), set(found.unreachable)) == ({JOB}, {"slurm"})
    assert queues.query([JOB], queue_only=[JobRef("slurm", "10")]).unreachable == {"slurm"}
    clock.now += 20
    assert queues.query([JOB, NEW]).jobs.keys() == {JOB, NEW}
    assert scene.queue.listings == 2


def test_the_end_of_a_job_is_asked_for_once(scene: Scene, clock: Clock) -> None:
    """In place of a listing; until then the job is unknown."""
    scene.queue.put("7", "RUNNING")
    queues, job = paced(scene, clock), JobRef("slurm", "7")
    assert queues.query([JOB, job]).jobs.keys() == {JOB, job}
    del scene.queue.jobs["7"]
    scene.queue.remembered["7"] = JobInfo("7", "NODE_FAIL")
    clock.now += 30
    assert queues.query([JOB, job]).unreachable == {"slurm"}
    for _ in range(3):
        clock.now += 30
        found = queues.query([JOB, job])
        assert (found.jobs[job].state, found.unreachable) == ("NODE_FAIL", frozenset())
    assert scene.queue.listings == 4


def test_names_of_one_cluster_share_its_listing(scene: Scene, clock: Clock) -> None:
    """Elements that wait together are answers of their own."""
    scene.queue.rows = [JobInfo("7_[0-1]", "PENDING", "Priority")]
    queues, job = paced(scene, clock), JobRef("slurm", "7_1")
    assert queues.listing("auto") == queues.listing("slurm") == scene.queue.rows
    assert queues.query([job]).jobs[job].ref == "7_1"
    assert scene.queue.listings == 1 and not queues.due
