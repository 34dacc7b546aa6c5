"""Why a job waits: the cause, what shows it, and when it will start."""

from __future__ import annotations

import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.waiting.explain import estimate_text
from detslurm.sdk.waiting.explanation import Explanation, UserAhead
from detslurm.slurm import NodeInfo, SlurmError
from detslurm.slurm.pending_details import PendingDetails, Priority, QuotaLimit, ReservedNodes
from detslurm.slurm.queue_state import JobInfo
from detslurm.store import NotFound
from detslurm.store.records import Intent
from tests.sdk.scenes import Scene

NOW = time.time()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A store and its queue."""
    return Scene(tmp_path)


def _row(job_id: str = "9", state: str = "PENDING", **more: Any) -> JobInfo:
    given: dict[str, Any] = {
        "partitions": ("main",), "user": "alice", "account": "ml", "qos": "small", "priority": 10,
        "gpus": 2, "cpus": 4, "node_count": 1, "time_limit": 3600, "submitted": NOW - 60,
    }  # fmt: skip
    return JobInfo(ref=job_id, state=state, **{**given, **more})


def _node(name: str, **more: Any) -> NodeInfo:
    given: dict[str, Any] = {"state": "MIXED", "partitions": ("main",), "gpus": 4, "cpus": 8}
    return NodeInfo(name=name, **{**given, **more})


def _why(scene: Scene, row: JobInfo, *others: JobInfo, **details: Any) -> Explanation:
    scene.queue.rows = [row, *others]
    scene.queue.details = PendingDetails(**details)
    return scene.client.explain_job(row.job_id, refresh=True)


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run long after this module was read."""
    monkeypatch.setattr(sys.modules[__name__], "NOW", time.time())


def _has(found: Explanation, *parts: str) -> bool:
    return all(any(part in line for line in found.evidence) for part in parts)


def test_others_come_first(scene: Scene) -> None:
    """How many, whose, the largest; what can't start now either is not counted."""
    scene.queue.machines = [
        _node("n1", gpus_used=4),
        _node("n2", gpus_used=3),
        _node("x", gpus=9, partitions=("b",)),
    ]
    found = _why(
        scene,
        _row("9", reason="Priority"),
        _row("8", reason="Resources", user="bob", gpus=8, node_count=2),
        _row("7_[0-2]", reason="Priority", user="bob", gpus=1),
        _row("10", reason="Priority", user="carol", priority=11, gpus=4),
        _row("6", reason="QOSMaxGRESPerUser", user="bob", priority=99),
        _row("5", reason="Priority", partitions=("other",), priority=99),
        _row("11", reason="Priority"),  # of equal priorities the smaller id counts
        _row("4", "RUNNING", user="bob", time_left=600, gpus=4),
        priorities=(
            Priority("9", 10, {"age": 3, "partition": 7}),
            Priority("10", 11, {"partition": 11}),
        ),
    )
    assert (found.category, found.permanent) == ("resources", False)
    assert found.cause == "Job 9 has 5 jobs ahead of it in partition main."
    assert found.ahead == (UserAhead("bob", 4, 11), UserAhead("carol", 1, 4))
    assert ("pending_details", "9", "10") in scene.queue.calls
    assert _has(
        found,
        "4 jobs of bob (11 slots), 1 job of carol (4 slots), 15 slots in all",
        "the largest of them is 8 of bob, for 8 slots",
        "not counted: 1 job of higher priority",
        "1 of 8 GPUs in partition main is free; it needs 2 GPUs on 1 node",
        "4 of bob, 4 slots: ",
        "its priority is 10 (age 3, partition 7)",
        "that of 10, which is ahead, is 11 (partition 11)",
    )


def test_nodes_that_are_away_and_reserved(scene: Scene) -> None:
    """Drained nodes with their reasons, its own reservation, and those of others in the way."""
    scene.queue.machines = [_node("n1"), _node("n2", state="IDLE+DRAIN", reason="bad fan")]
    down = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority pa"
    found = _why(scene, _row(reason=down, node_count=2))
    assert found.cause == "Job 9 waits: nodes down, drained or reserved."
    assert _has(found, "1 of 2 nodes out of service: n2 (idle+drain: bad fan)")
    mine = ReservedNodes("mine", NOW + 1800, NOW + 7200, ("n1",), "alice")
    found = _why(scene, _row(reason="Reservation", reservation="mine"), reservations=(mine,))
    assert "waits for its reservation mine" in found.cause
    assert _has(found, "its reservation mine begins")
    assert estimate_text(found, NOW).startswith("not before ")
    kept = ReservedNodes("maint", NOW + 1800, NOW + 7200, ("n1",), "maintenance")
    later = kept._replace(name="later", start=NOW + 9000)
    found = _why(scene, _row(reason="ReqNodeNotAvail"), reservations=(kept, later))
    assert "reserved before it could end" in found.cause
    assert "a time limit that ends before a reservation begins may help" in found.remedy
    assert _has(found, "reservation maint keeps 1 node for maintenance")
    assert not _has(found, "later")


def test_whole_nodes(scene: Scene) -> None:
    """An exclusive job needs idle nodes: CPUs that are free on several are no use to it."""
    scene.queue.machines = [_node("n1", cpus_used=1), _node("n2", cpus_used=1), _node("n3")]
    row = _row(reason="Resources", gpus=0, node_count=2)
    found = _why(scene, row, options=("--exclusive",))
    assert "needs 2 whole nodes, and so much is not free" in found.cause
    assert _has(found, "22 of 24 CPUs in partition main are free; it needs 2 whole nodes")


def test_limits_of_qos_and_accounts(scene: Scene) -> None:
    """Which one it is, how much of it is in use and by whom; too much for it never starts."""
    qos = {"limits": (QuotaLimit("QOS small", "", "user", "gres/gpu", 2, 2),)}
    ml = QuotaLimit("account ml", "", "group", "gres/gpu", 12, 11)
    accounts = {"limits": (ml, ml._replace(holder="account all", most=99))}
    mine = _row("8", "RUNNING", time_left=120)
    found = _why(scene, _row(reason="QOSMaxGRESPerUser"), mine, **qos)
    assert (found.category, found.permanent) == ("quota", False)
    assert "a limit of QOS small for a user (2 of 2 GPUs in use)" in found.cause
    assert _has(
        found, "at most 2 GPUs, 2 in use; the job needs 2", "in use by 8 of alice (ends in 2 min"
    )
    found = _why(scene, _row(reason="QOSMaxGRESPerUser", gpus=4), mine, **qos)
    assert found.permanent and "asks for 4 GPUs, and QOS small for a user grants 2" in found.cause
    found = _why(scene, _row(reason="AssocGrpGRES"), _row("7", "RUNNING", user="bob"), **accounts)
    assert "a limit of account ml (11 of 12 GPUs in use)" in found.cause
    assert _has(found, "in use by 7 of bob")
    found = _why(scene, _row(reason="AssocGrpGRES", gpus=0), **accounts)
    assert _has(found, "account ml: at most 12 GPUs, 11 in use")
    assert not _has(found, "needs 0") and not found.permanent
    found = _why(scene, _row(reason="AssocGrpGRES"), unavailable=("limits (denied)",))
    assert "a limit of its account" in found.cause and found.unavailable == ("limits (denied)",)


def test_the_own_throttle(scene: Scene) -> None:
    """It is the experiment's, and is called so."""
    scene.experiment(trials=4, job="9")
    folder = str(scene.root / "experiments" / "1" / "jobs")
    rest = _row("9_[1-3]", reason="JobArrayTaskLimit", throttle=1, folder=folder)
    running = _row("9_0", "RUNNING", folder=folder, throttle=1)
    found = _why(scene, rest, running)
    assert found.category == "quota" and (found.experiment_id, found.trial_ids) == (1, (2, 3, 4))
    assert "its own experiment's limit of trials that run at once: 1 of 1 run" in found.cause
    assert "max-slots 1 N" in found.remedy
    same = scene.client.explain_job(1)
    assert (same.job_id, same.cause) == (found.job_id, found.cause)
    assert scene.client.explain_trial(1, 3).job_id == "9_[1-3]"
    assert scene.client.explain_job("9_2").job_id == "9_2"
    assert "does not wait" in scene.client.explain_trial(1, 1).cause
    (job,) = (job for job in scene.client.list_jobs() if job.waiting)
    assert job.explain().cause == found.cause
    scene.queue.rows = []
    with pytest.raises(NotFound, match="no job of trial 3 is in the queue"):
        scene.client.explain_trial(1, 3, refresh=True)


def test_held_jobs_have_one_command_that_helps(scene: Scene) -> None:
    """By its user, by Slurm after failed launches; an experiment's is activated."""
    found = _why(scene, _row(reason="JobHeldUser", priority=0))
    assert (found.category, found.remedy) == ("held", "Release it with `scontrol release 9`.")
    failed = _row(reason="launch_failed_requeued_held", priority=0)
    found = _why(scene, failed)
    assert "nodes could not start it" in found.cause and "scontrol release 9" in found.remedy
    assert found.permanent and found.expected_start is None
    scene.experiment(job="9")
    folder = str(scene.root / "experiments" / "1" / "jobs")
    found = _why(scene, replace(failed, folder=folder))
    assert "detslurm experiment activate 1" in found.remedy
    found = _why(scene, _row(reason="JobHeldAdmin", priority=0))
    assert "The site must release it" in found.remedy


def test_jobs_of_an_experiment_that_has_used_its_budget(scene: Scene) -> None:
    """Slurm calls them held by their user, who has never done so."""
    experiment = scene.experiment(job="9")
    row = _row(reason="JobHeldUser", folder=str(scene.root / "experiments" / "1" / "jobs"))
    used = "its budget is used (2 of 2 slot-hours)"
    for reason in (used, "trial 1: it did nothing for 30 min"):
        experiment.append(Intent(intent="pause", reason=reason))
        found = _why(scene, row)
        assert (
            f"is held, because its experiment was paused by its own jobs: {reason}" in found.cause
        )
        raised = "Raise it with `detslurm experiment set budget 1 N`. Then let it go on"
        assert found.remedy.startswith(raised if reason == used else "Let it go on")
        assert found.remedy.endswith(" with `detslurm experiment activate 1`.")
    experiment.append(Intent(intent="pause"))
    assert "held by its user" in _why(scene, row).cause


def test_conditions_times_licenses_and_rules(scene: Scene) -> None:
    """The other job's state, the begin time, a license, what the partition grants."""
    waits = _row(reason="Dependency", dependency="afterok:7(unfulfilled)")
    seven = JobInfo(ref="7", state="PENDING", reason="JobHeldUser")
    found = _why(scene, waits, dependencies=(seven, JobInfo(ref="6", state="FAILED")))
    assert found.category == "dependency"
    assert _has(found, "afterok:7(unfulfilled)", "job 7 waits itself: held by its user")
    assert _has(found, "job 6 ended: FAILED")
    found = _why(scene, replace(waits, reason="DependencyNeverSatisfied"))
    assert found.permanent and "Dependency=" in found.remedy
    found = _why(scene, _row(reason="BeginTime", expected_start=NOW + 3600))
    assert found.category == "other" and "may not begin before" in found.cause
    assert "not before" in estimate_text(found, NOW)
    found = _why(scene, _row(reason="Licenses", licenses="matlab:1"))
    assert "licenses are in use" in found.cause
    found = _why(scene, _row(reason="PartitionTimeLimit"))
    assert (found.category, found.permanent) == ("quota", True)


def test_answers_are_used_for_a_minute(scene: Scene) -> None:
    """Few calls, none the second time; the file is its user's alone; no store is made for it."""
    scene.queue.rows = [_row(reason="Resources")]
    scene.client.explain_job("9")
    assert not list(scene.root.iterdir())
    scene.experiment()
    scene.queue.calls.clear()
    scene.queue.listings = 0
    first = scene.client.explain_job("9")
    again = scene.client.explain_job("9")
    assert (scene.queue.listings, len(scene.queue.calls)) == (1, 1)
    assert again.as_of <= first.as_of + 1 and again.cause == first.cause
    path = scene.root / "queue.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("{torn")
    assert scene.client.explain_job("9").cause == first.cause
    assert scene.client.explain_job("9", refresh=True).cause == first.cause
    assert scene.queue.listings == 3
    with pytest.raises(NotFound, match="no job 10 is in the queue"):
        scene.client.explain_job("10")
    scene.queue.remembered["10"] = JobInfo(ref="10", state="FAILED", exit_code=2)
    with pytest.raises(NotFound, match="it ended FAILED, exit code 2"):
        scene.client.explain_job("10")
    scene.queue.down = True
    with pytest.raises(SlurmError):
        scene.client.explain_job("9", refresh=True)


def test_answers_from_before_a_change_are_not_used(scene: Scene) -> None:
    """Who has just submitted, released or ended a job is told of what is now."""
    experiment = scene.experiment(job="9")
    here = {"folder": str(experiment.jobs)}
    scene.queue.rows = [_row(reason="JobHeldUser", **here)]
    assert "held" in scene.client.explain_job("1").cause
    scene.queue.rows = [_row(reason="Resources", **here)]
    experiment.append(Intent(intent="activate"))
    assert "held" not in scene.client.explain_job("1").cause
    assert scene.queue.listings == 2
    scene.queue.rows.append(_row("11", reason="JobHeldUser"))
    assert "held" in scene.client.explain_job("11").cause


def test_estimates_are_compared_with_starts(scene: Scene) -> None:
    """The first estimate of each job counts, and the start by the queue or, once the job is gone,
    by its run in the store. A run before the estimate, or another job of the same id, does not."""
    trial = scene.experiment(job="9").trial(1)
    here = {"folder": str(scene.root / "experiments" / "1" / "jobs")}
    asked = ((_row("9", **here), 600), (_row("10"), 600), (_row("10"), 7200), (_row("11"), 600))
    for row, wait in asked:
        found = _why(scene, replace(row, reason="Resources", expected_start=NOW + wait))
        assert found.expected_start is not None and found.accuracy is None
    for moment in (NOW - 1000, NOW + 700):
        job = {"cluster": "slurm", "ref": "9", "nodes": []}
        trial.open_run({"hparams": {}, "seed": 1, "time": moment, "host": "n1", "job": job})
    started = _row("10", "RUNNING", started=NOW + 1320)
    other = _row("11", "RUNNING", submitted=NOW + 1, started=NOW + 5000)
    last = _row("12", reason="Resources", expected_start=NOW + 600)
    found = _why(scene, last, started, other)
    assert found.accuracy is not None and found.accuracy.jobs == 2
    assert found.accuracy.median_error == pytest.approx((100 + 720) / 2)
    text = estimate_text(found, NOW)
    assert "by Slurm's scheduler" in text and "off by a median of 7 min over 2 jobs" in text
    assert _why(scene, replace(last, reason="JobHeldUser")).expected_start is None


@pytest.mark.parametrize("more", ["", ",nvme:1"])
def test_what_would_start_sooner(scene: Scene, more: str) -> None:
    """At most three questions: half the time, half the GPUs, the partition with the most room."""
    scene.queue.machines = [
        _node("n1", gpus_used=4),
        _node("n2", partitions=("b", "main")),
        _node("n3", partitions=("c",), gpus=1),
    ]
    options = ("--account=ml", f"--gres=gpu:a100:2{more}")
    scene.queue.rows = [_row(reason="Resources", expected_start=NOW + 7200)]
    scene.queue.details = PendingDetails(options=options)
    scene.queue.starts = [NOW + 600, NOW + 9000, SlurmError("no access")]
    found = scene.client.explain_job("9", sooner=True)
    asked = [call[1] for call in scene.queue.calls if call[0] == "start_of"]
    assert asked == [
        [*options, "--partition=main", "--time=30"],
        ["--account=ml", f"--gres=gpu:a100:1{more}", "--partition=main", "--time=60"],
        [*options, "--partition=b", "--time=60"],
    ]
    time_, gpus, pool = found.sooner
    assert time_.sooner == pytest.approx(6600) and "TimeLimit=30" in time_.command
    assert gpus.sooner is not None and gpus.sooner < 0 and gpus.change == "1 GPU a node"
    assert (pool.expected_start, pool.refusal) == (None, "no access")
    scene.queue.rows = [_row(reason="JobHeldUser")]
    assert scene.client.explain_job("9", sooner=True, refresh=True).sooner == ()
