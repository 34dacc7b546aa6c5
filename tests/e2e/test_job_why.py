"""Why a job waits, on real clusters: one with every kind of limit, one without accounting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster, ClusterSpec, User, guarded, missing_programs
from tests.cluster.waiting import wait_for
from tests.conftest import Login
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_failures import WAITS, pid_of_code
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

LIMITS = ClusterSpec(
    name="why",
    nodes=2,
    extra=("AccountingStorageEnforce=associations,limits,qos", "Licenses=matlab:1"),
)


@pytest.fixture(scope="module")
def limited() -> Iterator[Cluster]:
    """A site with accounts, a QOS that grants a user two GPUs, and a license."""
    if missing := missing_programs(accounting=True):
        pytest.skip(f"no Slurm cluster: not installed: {', '.join(missing)}")
    if os.geteuid():
        pytest.skip("two users at once: only root can act as several users")
    with guarded(Cluster(LIMITS)) as cluster:
        for words in (
            ("add", "account", "ml"),
            ("add", "qos", "small"),
            ("modify", "qos", "small", "set", "MaxTRESPerUser=gres/gpu=2"),
            ("add", "user", "alice", "bob", "account=ml", "qos=normal,small", "defaultqos=normal"),
            ("modify", "account", "ml", "set", "GrpTRES=gres/gpu=6"),
        ):
            cluster.command("sacctmgr", "-i", *words)
        yield cluster


def _submitted(user: User, *words: str, wrap: str = "sleep 600") -> str:
    argv = ("sbatch", "--parsable", "-o", "/dev/null", *words, f"--wrap={wrap}")
    return user.run(*argv).stdout.strip()


class Asking:
    """A user who asks why, once Slurm has said its word."""

    def __init__(self, desk: Desk, site: Cluster) -> None:
        self.desk, self.site = desk, site

    def runs(self, job: str) -> None:
        self.site.wait_state(job, "RUNNING")

    def why(self, job: str, *reasons: str) -> dict[str, Any]:
        """The explanation, when squeue shows one of these reasons."""

        def shown() -> bool:
            text = self.site.command("squeue", "-h", "-j", job, "-o", "%r", check=False)
            return text.strip().startswith(reasons)

        wait_for(shown, PATIENCE, f"job {job}: {' or '.join(reasons)}")
        found: dict[str, Any] = {}

        def explained() -> bool:  # a command that takes too long is done without
            found.update(
                unwrap(self.desk.run("job", "why", "-j", job, "--refresh", "--json").stdout)
            )
            return not found["unavailable"]

        wait_for(explained, PATIENCE, f"all that Slurm can tell of job {job}")
        return found


def test_every_kind_of_wait(limited: Cluster, login: Login) -> None:
    """Limits, licenses, conditions, holds, reservations, lost nodes: each is told as what it is."""
    alice, bob = login(limited, "alice"), login(limited, "bob")
    desk = Desk(alice)
    ask = Asking(desk, limited)
    gpus = _submitted(bob, "-N1", "--gres=gpu:4", "-t", "50")
    small = _submitted(alice, "-N1", "--gres=gpu:2", "-q", "small", "-t", "20")
    licensed = _submitted(bob, "-N1", "-L", "matlab:1", "-t", "30")
    number = desk.submit(
        desk.project(WAITS),
        "searcher.name=grid",
        "searcher.max_concurrent_trials=1",
        "hyperparameters.x={type: int, minval: 0, maxval: 2, count: 3}",
    )
    for job in (gpus, small, licensed):
        ask.runs(job)
    pid_of_code(desk, number)

    _check_quotas(ask, alice, bob, small, gpus, number)
    _check_conditions(ask, alice, bob, small)
    _check_nodes(ask, alice, bob)


def _check_quotas(ask: Asking, alice: User, bob: User, small: str, gpus: str, number: int) -> None:
    found = ask.why(_submitted(alice, "--gres=gpu:2", "-q", "small"), "QOSMaxGRESPerUser")
    assert (found["category"], found["permanent"]) == ("quota", False)
    assert "QOS small for a user (2 of 2 GPUs in use)" in found["cause"]
    assert any(f"in use by {small} of alice" in line for line in found["evidence"])

    found = ask.why(_submitted(alice, "--gres=gpu:4", "-q", "small"), "QOSMaxGRESPerUser")
    assert found["permanent"] and "asks for 4 GPUs" in found["cause"]

    found = ask.why(_submitted(bob, "--gres=gpu:1"), "AssocGrpGRES")
    assert found["category"] == "quota" and "account ml (6 of 6 GPUs in use)" in found["cause"]
    assert any(small in line and gpus in line for line in found["evidence"])

    array = ask.desk.job(number)
    found = ask.why(f"{array}_1", "JobArrayTaskLimit")
    assert (found["category"], found["experiment_id"]) == ("quota", number)
    assert "its own experiment's limit of trials that run at once: 1 of 1 run" in found["cause"]
    assert ask.desk.run("job", "why", str(number)).stdout.startswith(f"Job {array}_[1-2] waits")
    trial = ask.desk.experiment(number).created().first_trial + 2
    text = ask.desk.run("job", "why", "--trial", str(trial)).stdout
    assert "its own experiment's limit" in text and f"of experiment {number}" in text


def _check_conditions(ask: Asking, alice: User, bob: User, small: str) -> None:
    found = ask.why(_submitted(alice, "-L", "matlab:1"), "Licenses")
    assert found["category"] == "resources" and "licenses are in use" in found["cause"]

    found = ask.why(_submitted(alice, "-d", f"afterok:{small}"), "Dependency")
    assert (found["category"], found["permanent"]) == ("dependency", False)
    assert any(line.startswith(f"job {small} runs") for line in found["evidence"])
    failed = _submitted(alice, wrap="false")
    ask.site.wait_state(failed, "FAILED")
    found = ask.why(_submitted(alice, "-d", f"afterok:{failed}"), "DependencyNeverSatisfied")
    assert found["permanent"] and f"job {failed} ended: FAILED" in found["evidence"]

    held = _submitted(alice, "--hold")
    found = ask.why(held, "JobHeldUser")
    assert (found["category"], found["permanent"]) == ("held", True)
    assert f"`scontrol release {held}`" in found["remedy"]
    by_site = _submitted(bob, "--begin=now+1hour")
    found = ask.why(by_site, "BeginTime")
    assert found["category"] == "other" and "may not begin before" in found["cause"]
    assert found["expected_start"]["scheduled"] is False
    ask.site.command("scontrol", "hold", by_site)
    found = ask.why(by_site, "JobHeldAdmin")
    assert found["category"] == "held" and "administrator" in found["cause"]


def _check_nodes(ask: Asking, alice: User, bob: User) -> None:
    site = ask.site
    site.command(
        "scontrol", "create", "reservation", "reservationname=later", "users=bob",
        "starttime=now+1hour", "duration=60", "nodes=n2",
    )  # fmt: skip
    found = ask.why(_submitted(bob, "--reservation=later", "-t", "10"), "Reservation")
    assert "its reservation later" in found["cause"]
    assert any("its reservation later begins" in line for line in found["evidence"])
    found = ask.why(_submitted(alice, "-w", "n2", "-t", "180"), "ReqNodeNotAvail", "Nodes req")
    assert found["category"] == "resources" and "reserved before it could end" in found["cause"]
    assert "ends before a reservation begins" in found["remedy"]

    site.command("scontrol", "update", "nodename=n2", "state=drain", "reason=bad fan")
    found = ask.why(_submitted(alice, "-w", "n2", "-t", "10"), "ReqNodeNotAvail", "Nodes req")
    lost = next(line for line in found["evidence"] if "out of service: n2" in line)
    assert "bad fan" in lost
    site.command("scontrol", "update", "nodename=n2", "state=resume")


@pytest.mark.strange_site
def test_a_full_partition_without_accounting(desk: Desk, bob: User, site: Cluster) -> None:
    """What is free, who is ahead, whose turn it is; nothing is guessed where nothing is known."""
    ask = Asking(desk, site)
    full = _submitted(bob, "-N4", "--exclusive", "-t", "30")
    ask.runs(full)
    large = _submitted(bob, "-N4", "--exclusive", "-t", "20")
    found = ask.why(large, "Resources")
    assert (
        found["category"] == "resources"
        and "needs 4 whole nodes, and so much is not free" in found["cause"]
    )
    assert any(line.startswith("0 of 32 CPUs in partition main") for line in found["evidence"])
    assert any(
        f"reach its time limit is {full} of {bob.name}" in line for line in found["evidence"]
    )
    mine = _submitted(desk.user, "-N1", "-t", "60", "--nice=50")
    found = ask.why(mine, "Priority")
    assert found["cause"] == f"Job {mine} has 1 job ahead of it in partition main."
    assert [(one["user"], one["jobs"]) for one in found["ahead"]] == [(bob.name, 1)]
    text = desk.run("job", "why", mine, "--sooner").stdout
    assert "Expected start: about " in text or "Expected start: not known" in text
    assert "a time limit of 30 min: " in text and "partition high: " in text
    gone = desk.run("job", "why", "7", check=False)
    assert gone.returncode == 1 and "no job 7 is in the queue" in gone.stderr
