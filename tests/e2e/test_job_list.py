"""The queue of a real cluster, seen by one of its users."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster import Cluster, User
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_failures import WAITS, pid_of_code
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

GRID = (
    "searcher.name=grid",
    "searcher.max_concurrent_trials=1",
    "resources.priority=50",
    "hyperparameters.x={type: int, minval: 0, maxval: 3, count: 4}",
)
JOINS = """\
    import time
    import detslurm as det

    with det.core.init():
        time.sleep(600)
    """


def _data(desk: Desk, *words: str) -> Any:
    return unwrap(desk.run(*words, "--json").stdout)


def _listed(desk: Desk) -> dict[str, dict[str, Any]]:
    return {job["id"]: job for job in _data(desk, "job", "list")}


def test_everybodys_jobs_with_their_experiments(desk: Desk, bob: User, site: Cluster) -> None:
    """Trials that run, wait for their own throttle, are paused; a script that joined; another's."""
    number = desk.submit(desk.project(WAITS), *GRID)
    pid_of_code(desk, number)
    paused = desk.submit(desk.project(WAITS, name="other"), "--paused")
    desk.write("joins.py", JOINS)
    script = desk.write("joins.sh", "#!/bin/bash\npython3 joins.py\n")
    joined = desk.user.run("sbatch", "--parsable", str(script)).stdout.strip()
    large = ("sbatch", "--parsable", "-N4", "--exclusive", "-J", "large", "--wrap", "sleep 600")
    others = bob.run(*large).stdout.strip()
    array = desk.job(number)

    def all_there() -> dict[str, dict[str, Any]] | None:
        found = _listed(desk)
        known = found.get(joined, {}).get("type") == "EXPERIMENT" and found.get(others)
        return found if known and known["reason"] in ("Resources", "Priority") else None

    jobs = wait_for(all_there, PATIENCE, "the script's experiment, and Slurm's look at the large")
    runs, rest = jobs[f"{array}_0"], jobs[f"{array}_[1-3]"]
    assert (runs["experiment_id"], runs["state"], runs["slots_acquired"]) == (
        number,
        "RUNNING",
        1,
    )
    first = desk.experiment(number).created().first_trial
    assert (runs["trial_ids"], rest["trial_ids"]) == ([first], [first + 1, first + 2, first + 3])
    assert (rest["reason"], rest["slots_acquired"], rest["slots_needed"]) == (
        "JobArrayTaskLimit", 0, 3,
    )  # fmt: skip
    assert rest["reason_text"] == "own limit on trials"
    assert (runs["name"], runs["user"], runs["priority"]) == ("test", desk.user.name, 50)
    (held,) = (job for job in jobs.values() if job["experiment_id"] == paused)
    assert (held["state"], held["held"], held["reason"]) == ("QUEUED", True, "JobHeldUser")
    foreign = jobs[others]
    assert (foreign["type"], foreign["user"], foreign["name"]) == ("SLURM", bob.name, "large")
    assert foreign["priority"] is None
    order = [job["state"] for job in jobs.values()]
    assert order == sorted(order, reverse=True), "RUNNING comes before QUEUED"
    assert "large" not in desk.run("job", "list", "--mine").stdout

    shown = desk.run("job", "describe", f"{array}_0").stdout
    assert f"{first} (run 1)" in shown
    assert f"{array}_0 RUNNING" in desk.run("trial", "describe", str(first)).stdout
    assert [job["id"] for job in _data(desk, "job", "describe", array)] == [
        f"{array}_0", f"{array}_[1-3]",
    ]  # fmt: skip
    pools = {pool["name"]: pool for pool in _data(desk, "resource-pool", "list")}
    assert pools["main"]["slots_total"] == 16  # GPUs
    assert pools["main"]["jobs_queued"] >= 5
    assert pools["low"]["preempt_mode"] == "REQUEUE"
    assert {agent["name"] for agent in _data(desk, "agent", "list")} == {"n1", "n2", "n3", "n4"}

    with site.reshaped(extra=("PrivateData=jobs",)):
        wait_for(lambda: others not in _listed(desk), PATIENCE, "a site that hides others' jobs")
        assert f"{array}_0" in _listed(desk)
    desk.user.run("scancel", joined)
    wait_for(lambda: joined not in _listed(desk), PATIENCE, "the cancelled job to leave")
    gone = desk.run("job", "describe", joined, check=False)
    assert (gone.returncode, "ended CANCELLED" in gone.stderr) == (1, True), gone.stderr
