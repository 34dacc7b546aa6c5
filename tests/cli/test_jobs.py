"""`detslurm job` and what else is seen of the queue."""

from __future__ import annotations

import getpass
from typing import Any

import pytest
import yaml

from detslurm.slurm import ClusterLimits, JobInfo, NodeInfo, PartitionLimits
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Queue, Scene


def _row(job_id: str, state: str = "PENDING", **more: Any) -> JobInfo:
    given = {"partitions": ("main",), "user": "bob", "cpus": 2, "name": "job", **more}
    return JobInfo(ref=job_id, state=state, **given)


def test_the_queue_is_listed_as_scheduled(scene: Scene, detslurm: Detslurm) -> None:
    """Determined's columns, with Slurm's reason; all jobs, one's own, a partition's, the last."""
    scene.queue.rows = [
        _row("4", priority=1, reason="Priority", expected_start=2000.0),
        _row("3", priority=9, user=getpass.getuser(), partitions=("low",)),
        _row("2", "RUNNING", started=10.0),
    ]
    done = detslurm("job", "list")
    assert done.status == 0
    head, _, *lines = done.out.splitlines()
    titles = [title.strip() for title in head.split("|")]
    assert titles[:4] == ["#", "ID", "Type", "Job Name"]
    assert {"Priority", "Slots (acquired/needed)", "Status", "User", "Reason"} <= set(titles)
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    assert [row[1] for row in cells] == ["2", "3", "4"]
    assert [row[titles.index("Slots (acquired/needed)")] for row in cells] == ["2/2", "0/2", "0/2"]
    assert [row[titles.index("Status")] for row in cells] == ["RUNNING", "QUEUED", "QUEUED"]
    assert [job["id"] for job in detslurm("j", "ls", "--mine", "--json").data] == ["3"]
    assert [job["id"] for job in detslurm("job", "list", "-p", "low", "--json").data] == ["3"]
    as_yaml = detslurm("job", "list", "--cluster", "slurm", "--yaml")
    assert yaml.safe_load(as_yaml.out)["data"] == detslurm("job", "list", "--json").data
    last = detslurm("job", "list", "--reverse", "--limit", 1, "--json")
    assert [(job["id"], job["position"]) for job in last.data] == [("4", 2)]
    assert "1 of 3" in last.err


def test_a_queue_that_does_not_answer_is_an_error(scene: Scene, detslurm: Detslurm) -> None:
    """In Slurm's words, with the exit status 1, and no empty table."""
    scene.queue.down = True
    done = detslurm("job", "list")
    assert (done.status, done.out) == (1, "")
    assert "Unable to contact slurm controller" in done.err


def test_pools_agents_and_slots(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster in Determined's words; a node that is drained says why."""
    main = PartitionLimits(
        "main", default=True, max_time=3000, gpus_per_node=4, preempt_mode="REQUEUE",
        allow_accounts=("bio", "math"),
    )  # fmt: skip
    limits = ClusterLimits(cluster="test", partitions={"main": main})
    monkeypatch.setattr(Queue, "limits", lambda _: limits)
    scene.queue.rows = [_row("2", "RUNNING", nodes=("n1",)), _row("3")]
    scene.queue.machines = [
        NodeInfo(name="n1", state="MIXED", partitions=("main",), gpus=4, gpus_used=1),
        NodeInfo(name="n2", state="IDLE+DRAIN", partitions=("main",), gpus=4, reason="bad disk"),
    ]
    pools = detslurm("resource-pool", "list")
    assert "main *" in pools.out
    for text in ("3/8", "1/2", "2-02:00", "REQUEUE", "accounts bio,math"):
        assert text in pools.out
    (pool,) = detslurm("rp", "list", "--json").data
    assert (pool["slots_free"], pool["jobs_queued"], pool["max_time"]) == (3, 1, 3000)
    assert ",3000," in detslurm("rp", "list", "--csv").out.splitlines()[1]
    agents = detslurm("agent", "list")
    assert "bad disk" in agents.out
    assert [one["slots_free"] for one in detslurm("agent", "list", "--json").data] == [3, 0]
    assert len(detslurm("agent", "list", "-p", "main", "--json").data) == 2
    for words in (("agent", "list"), ("slot", "list"), ("job", "list")):
        unknown = detslurm(*words, "-p", "mian")
        assert (unknown.status, unknown.out) == (1, "")
        assert "there is no resource pool 'mian'; there are main" in unknown.err
    slots = detslurm("slot", "list", "--json").data
    assert [(one["agent"], one["state"], one["count"], one["jobs"]) for one in slots] == [
        ("n1", "USED", 1, ["2"]),
        ("n1", "FREE", 3, []),
        ("n2", "UNAVAILABLE", 4, []),
    ]
    assert "UNAVAILABLE" in detslurm("slot", "list").out
    found = detslurm("doctor", "--json").data["findings"]
    assert any("main 3 of 8 GPUs, 1 jobs wait" in one["text"] for one in found)


def test_a_job_is_described_with_its_trials_and_runs(scene: Scene, detslurm: Detslurm) -> None:
    """Which run of which trial it is, what it asked for, and why the rest waits."""
    experiment = scene.experiment(trials=3, job="9")
    scene.run(experiment, 0, ref="9_0")
    folder = str(experiment.jobs)
    given: dict[str, Any] = {"folder": folder, "user": "alice", "memory": 2048, "nice": 41}
    scene.queue.rows = [
        _row("9_0", "RUNNING", started=10.0, time_left=90, nodes=("n1",), **given),
        _row("9_[1-2]", reason="JobArrayTaskLimit", throttle=1, **given),
    ]
    done = detslurm("job", "describe", "9")
    assert done.status == 0, done.err
    for text in ("1 (run 1)", "n1", "1 minute and 30 seconds", "2.0 GiB", "JobArrayTaskLimit"):
        assert text in done.out
    runs, waits = detslurm("job", "describe", "9", "--json").data
    assert (runs["trial_ids"], runs["runs"], runs["nodes"]) == ([1], {"1": 1}, ["n1"])
    assert (waits["trial_ids"], waits["priority"]) == ([2, 3], 42)
    assert waits["requested"] == {"cpus": 2, "memory": 2048, "throttle": 1}
    assert len(detslurm("job", "describe", "last", "--json").data) == 2
    scene.queue.rows += [_row("1", user="carol")]
    for command in ("describe", "why"):
        both = detslurm("job", command, "1")
        assert "9_" in both.out and "1 is an experiment and a job" in both.err
        for words in (("-e", "1"), ("last",), ("test",)):
            one = detslurm("job", command, *words)
            assert ("carol" not in one.out, "9_" in one.out, one.err) == (True, True, "")
    assert "carol" in detslurm("job", "describe", "-j", "1").out
    assert detslurm("job", "why", "-j", "1", "--json").data["job_id"] == "1"
    assert detslurm("job", "why", "-ej", "1").status == 2
    assert detslurm("job", "describe", "9_x").status == 2
    assert "no experiment is called 'digits'" in detslurm("job", "describe", "digits").err
    assert "no job 77" in detslurm("job", "describe", "77").err


def test_describe_says_when_a_job_may_start_and_why_workers_wait(
    scene: Scene, detslurm: Detslurm
) -> None:
    """A trial names Slurm's expectation; a search its workers."""
    scene.experiment(job="9")
    scene.queue.put("9", "PENDING", "Priority", expected_start=1e9)
    trial = detslurm("trial", "describe", 1)
    assert "Expected Start : 2001-09-0" in trial.out
    data = detslurm("trial", "describe", 1, "--json").data
    assert data["job"]["expected_start"] == "2001-09-09T01:46:40.000000Z"
    experiment, log = scene.search()
    scene.works(experiment, log, "7_0")
    shown = detslurm("experiment", "describe", experiment.id)
    assert "Workers : 1 run, 2 wait: other jobs come first (Priority)" in shown.out
    workers = detslurm("experiment", "describe", experiment.id, "--json").data["workers"]
    assert [worker["ref"] for worker in workers] == ["7_0", "7_1", "7_2"]


def test_why_a_job_waits(scene: Scene, detslurm: Detslurm) -> None:
    """The cause, what helps, the evidence and the estimate; as data, too."""
    waits = _row("3", reason="Priority", priority=1, partitions=("main",), submitted=1.0)
    scene.queue.rows = [waits, _row("2", reason="Resources", priority=2, user="bob")]
    done = detslurm("job", "why", "3")
    assert done.status == 0
    first, second, *_ = done.out.splitlines()
    assert first == "Job 3 has 1 job ahead of it in partition main."
    assert second.startswith("It waits in main for ") and "resources (Priority)" in second
    assert "  - ahead of it: 1 job of bob (2 slots)" in done.out
    assert "Expected start: not known" in done.out
    data = detslurm("j", "why", "3", "--json").data
    assert (data["category"], data["reason"]) == ("resources", "Priority")
    assert data["ahead"] == [{"user": "bob", "jobs": 1, "slots": 2}]
    gone = detslurm("job", "why", "99")
    assert gone.status == 1 and "no job 99 is in the queue" in gone.err
    assert detslurm("job", "why", "3_x").status == 2
    wrong = detslurm("job", "why", "3", "--trial", "1")
    assert wrong.status == 2 and "give either ID or --trial" in wrong.err
