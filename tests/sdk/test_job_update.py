"""Changes of queued jobs through the client, on a queue that says what a test wants."""

from __future__ import annotations

import pwd
from os import geteuid
from typing import Any

import pytest

from detslurm.sdk import LifecycleError
from detslurm.sdk.jobs.order import ordinal
from detslurm.sdk.jobs.update import Made, QueueChange, parse
from detslurm.slurm import JobInfo, SlurmError
from tests.sdk.scenes import Scene

ME = pwd.getpwuid(geteuid()).pw_name


def row(job_id: str, priority: int = 959, nice: int = 41, **more: Any) -> JobInfo:
    """A pending job of one's own, of the default priority."""
    given = {"state": "PENDING", "partitions": ("main",), "user": ME, "cpus": 2, **more}
    return JobInfo(ref=job_id, priority=priority, nice=nice, **given)


def order(scene: Scene) -> list[str]:
    return [job.job_id for job in scene.client.list_jobs()]


@pytest.fixture
def ordinary(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A queue that refuses a nice below 0, `scontrol top` and changes of others' jobs."""
    update = scene.queue.update

    def checked(ref: str, **fields: str | int) -> None:
        users = {one.user for one in scene.queue.rows if one.job_id in ref.split(",")}
        if users - {ME}:
            raise SlurmError("Invalid user id for job 5")
        if int(fields.get("Nice", 0)) < 0:
            raise SlurmError("Access/permission denied for job 5")
        update(ref, **fields)

    def top(ref: str) -> None:
        scene.queue.calls.append(("top", ref))
        raise SlurmError("Access/permission denied")

    monkeypatch.setattr(scene.queue, "update", checked)
    monkeypatch.setattr(scene.queue, "top", top)
    return scene


def test_a_job_is_put_ahead_of_another(ordinary: Scene) -> None:
    """Directly ahead of it, with one update of the jobs whose nice changes; the place is told."""
    others = [row(str(n), 2000, 0, user="bob") for n in (90, 91)]
    ordinary.queue.rows = [*(row(str(n)) for n in (1, 2, 3, 4, 5)), *others]
    place = ordinary.client.update_job(5, ahead_of=3)
    assert order(ordinary) == ["90", "91", "1", "2", "5", "3", "4"]
    text = "job 5 is now 3rd of your 5 pending jobs in main; 2 jobs of others stand before it"
    assert str(place) == text
    assert len(ordinary.queue.calls) <= 2
    ordinary.queue.calls.clear()
    assert str(ordinary.client.update_job("5", ahead_of="4")) == text
    assert ordinary.queue.calls == []
    ordinary.client.update_job(1, behind_of=4)
    assert order(ordinary) == ["90", "91", "2", "5", "3", "4", "1"]
    assert all(one.nice is not None and one.nice >= 0 for one in ordinary.queue.rows)


def test_without_room_the_jobs_behind_give_way(ordinary: Scene) -> None:
    """`scontrol top` is tried where a job lacks priority; what the site refuses changes nothing."""
    ordinary.queue.rows = [row("1", 900, 0), row("2", 800, 0), row("3", 100, 0)]
    change = parse(["2.ahead-of=1"])[0]
    assert ordinary.client.queue_update().make(change) == Made(True, ("1",))
    assert ordinary.queue.calls == [("top", "2"), ("update", "1", {"Nice": 102})]
    assert order(ordinary) == ["2", "1", "3"]


def test_an_operator_needs_to_touch_no_other_job(scene: Scene) -> None:
    """Who may set a nice below 0 moves the job alone."""
    scene.queue.rows = [row("1", 900, 0), row("2", 800, 0)]
    scene.client.update_job(2, ahead_of=1)
    assert scene.queue.calls == [("update", "2", {"Nice": -102})]


def test_an_order_that_does_not_come_about_is_an_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's plugin may set priorities as it likes."""
    scene.queue.rows = [row("1"), row("2")]
    monkeypatch.setattr(scene.queue, "update", lambda ref, **fields: None)
    with pytest.raises(LifecycleError, match="job 2 is still not ahead of job 1"):
        scene.client.update_job(2, ahead_of=1)


@pytest.mark.parametrize(
    ("job", "changes", "text"),
    [
        (9, {"priority": 1}, "there is no job 9 in this queue"),
        (2, {"priority": 1}, "job 2 runs already"),
        (1, {"ahead_of": 2}, "job 2 runs already"),
        (3, {"ahead_of": 1}, "job 3 is held.*`scontrol release 3`"),
        (1, {"behind_of": 3}, "job 3 is held"),
        (1, {"ahead_of": 4}, "job 4 belongs to bob.*--priority 1"),
        (1, {"ahead_of": 5}, "job 5 in low.*--resource-pool low"),
        (1, {"ahead_of": 1}, "ahead of itself"),
        (4, {"priority": 1}, "job 4 belongs to bob, who alone"),
        (1, {"max_slots": 3}, "ArrayTaskThrottle"),
        (1, {"priority": 100}, "priority is 1"),
        (1, {"weight": -1.0}, "weight is a positive number"),
        (1, {"priority": 1, "weight": 1.0}, "priority and weight are mutually exclusive"),
        (1, {"ahead_of": 5, "behind_of": 4}, "ahead-of and behind-of are mutually exclusive"),
        ("1_3", {"priority": 1}, "one element of an array.*change 1"),
        (1, {}, "nothing is to be changed"),
    ],
)
def test_refusals(ordinary: Scene, job: Any, changes: dict[str, Any], text: str) -> None:
    """Each in a sentence with its reason; nothing was changed."""
    ordinary.queue.rows = [
        row("1"),
        row("2", state="RUNNING"),
        row("3", 0, reason="JobHeldUser"),
        row("4", user="bob"),
        row("5", partitions=("low",)),
    ]
    with pytest.raises(LifecycleError, match=text):
        ordinary.client.update_job(job, **changes)
    assert [call for call in ordinary.queue.calls if call[0] == "update"] == []


def test_of_an_experiments_job_the_experiment_is_changed(scene: Scene) -> None:
    """All its jobs, and those that it submits later; only what waits changes its partition."""
    folder = str(scene.experiment(4, job="7").path / "jobs")
    scene.queue.put("7_0", "RUNNING")
    scene.queue.rows = [
        row("7_0", state="RUNNING", folder=folder),
        row("7_[1-3]", folder=folder),
    ]
    client = scene.client
    place = client.update_job("7_[1-3%2]", priority=10, resource_pool="low", max_slots=2)
    assert str(place) == "job 7 is now your only pending job in low"
    client.update_job(7, qos="long")
    assert scene.queue.calls == [
        ("update", "7", {"Nice": 9}),
        ("update", "7_[1-3]", {"Partition": "low"}),
        ("update", "7", {"ArrayTaskThrottle": 2}),
        ("update", "7_[1-3]", {"QOS": "long"}),
    ]
    experiment = client.experiment(1)
    assert (experiment.view.pool, experiment.view.desired.fields["priority"]) == ("low", 10)
    scene.queue.jobs.clear()
    experiment.activate()
    (request,) = scene.queue.requests
    assert (request.partition, request.qos, request.nice) == ("low", "long", 9)


def test_changes_are_read_whole() -> None:
    """All that is wrong is told at once."""
    assert parse(["4711.priority=1", "4711_[3-9%2].resource_pool=a100", "12.ahead-of=4711"]) == [
        QueueChange("4711", "priority", 1),
        QueueChange("4711", "resource-pool", "a100"),
        QueueChange("12", "ahead-of", "4711"),
    ]
    with pytest.raises(ValueError) as error:
        parse(["x", "1.nosuch=2", "1.priority=a", "1.qos=a b", "2.weight=1", "2.priority=1", "3=4"])
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("x", "1.nosuch=2", "1.priority=a", "1.qos=a b", "3=4", "job 2"),
    ]


def test_ordinals() -> None:
    """As people count."""
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)
    told = "1st, 2nd, 3rd, 4th, 11th, 12th, 13th, 21st, 102nd, 111th"
    assert ", ".join(map(ordinal, numbers)) == told
