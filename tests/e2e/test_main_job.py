"""The main job: submitted, preempted, requeued, resumed, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.digits import EPOCHS, SEED, hold, training
from tests.e2e.exact import HELD_AT, assert_undisturbed, project
from tests.e2e.exact_train import EPOCH
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster


def make_room(desk: Desk, *, seconds: int = 1) -> str:
    """A job of higher priority that needs the whole cluster; returns its id."""
    done = desk.user.run(
        "sbatch", "--parsable", "--partition=high", "--nodes=4", "--exclusive",
        "--output=/dev/null", f"--wrap=sleep {seconds}",
    )  # fmt: skip
    return done.stdout.strip()


def end_soon(site: Cluster, job: str) -> None:
    """The administrator sets an end, for Slurm has no limit below a minute. It sees every half a
    minute which limits are near, and warns by half a minute too early rather than too late."""
    site.command("scontrol", "update", f"JobId={job}", "EndTime=now+60seconds")


def test_digits_is_preempted_in_mid_epoch(desk: Desk, digits: Path, site: Cluster) -> None:
    """The example trains to over 95 %, and its metrics, checkpoints and logs are listed. A job in
    `high` preempts the same in `low`: it saves within the grace, is requeued by itself, resumes
    mid-epoch, and ends with the bits of the undisturbed run; no restart is used."""
    whole = desk.submit(digits, SEED)
    hold(digits, HELD_AT)
    number = desk.submit(digits, SEED, "resources.resource_pool=low")
    desk.run("experiment", "wait", str(whole))
    assert_trained(desk, whole)
    desk.wait_for_steps(number, HELD_AT)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    desk.wait_for_state(number, "COMPLETED")
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert trial.restarts == 0
    assert trial.runs[1].resumed_steps == HELD_AT
    assert [run.job.ref for run in trial.runs] == [desk.job(number)] * 2
    assert trial.runs[1].job.restart_count == 1
    assert training(desk, number) == training(desk, whole)


def assert_trained(desk: Desk, number: int) -> None:
    """Metrics, checkpoints and logs of the example are listed, and its accuracy is real."""
    trial = desk.trial(number)
    assert trial.state == "COMPLETED"
    assert trial.best_validation is not None and trial.best_validation.value is not None
    assert trial.best_validation.value > 0.95
    assert len(trial.checkpoints) == EPOCHS
    logs = desk.run("experiment", "logs", str(number)).stdout
    assert f"[rank=0] || epoch {EPOCHS}: accuracy 0.9" in logs
    described = desk.run("experiment", "describe", str(number)).stdout
    assert trial.latest_checkpoint is not None
    for fact in ("COMPLETED", str(trial.best_validation.value)[:5]):
        assert fact in described
    listed = desk.run("experiment", "list-checkpoints", str(number)).stdout
    assert trial.latest_checkpoint.uuid in listed


def test_preempted_under_shells(desk: Desk) -> None:
    """The shells between Slurm and the loop survive the SIGTERM that every process gets."""
    inner = "bash -c 'trap : TERM; python3 train.py; exit $?'"
    entrypoint = json.dumps(f"cd . && {inner} && true")
    number = desk.submit(
        project(desk, HELD_AT), "resources.resource_pool=low", f"entrypoint={entrypoint}"
    )
    desk.wait_for_steps(number, HELD_AT)
    make_room(desk)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert_undisturbed(desk, number)


def test_preempted_on_a_site_that_sends_the_users_signal(desk: Desk, site: Cluster) -> None:
    """With preempt_send_user_signal the runner alone hears of the preemption, and it is enough."""
    with site.reshaped(send_user_signal=True):
        number = desk.submit(project(desk, HELD_AT), "resources.resource_pool=low")
        desk.wait_for_steps(number, HELD_AT)
        make_room(desk)
        desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert_undisturbed(desk, number)


@pytest.mark.slow
def test_a_chain_of_time_limits(desk: Desk, site: Cluster) -> None:
    """Three segments make one training; a reached limit is no restart."""
    held = (HELD_AT, 4 * HELD_AT)
    number = desk.submit(
        project(desk, *held), "slurm.time=10", "max_restarts=0", "slurm.signal_lead=50"
    )
    for segment, step in enumerate(held, 1):
        desk.wait_for_steps(number, step)
        end_soon(site, desk.job(number))
        ended = ["time_limit"] * segment
        wait_for(lambda: desk.outcomes(number)[:segment] == ended, PATIENCE, "the warning")  # noqa: B023
        site.command("scontrol", "update", f"JobId={desk.job(number)}", "TimeLimit=10")
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["time_limit", "time_limit", "completed"]
    assert_undisturbed(desk, number)


def test_pause_frees_the_allocation_and_activate_goes_on(desk: Desk, site: Cluster) -> None:
    """A paused trial holds no node; activated, it goes on from its checkpoint."""
    number = desk.submit(project(desk, HELD_AT))
    desk.wait_for_steps(number, HELD_AT)
    desk.run("experiment", "pause", str(number))
    desk.wait_for_state(number, "PAUSED")
    wait_for(
        lambda: desk.outcomes(number) == ["paused"], PATIENCE, "the run to have ended as paused"
    )
    wait_for(
        lambda: site.job(desk.job(number)).get("JobState") == "PENDING",
        PATIENCE,
        "the job to be held",
    )
    assert site.job(desk.job(number))["Reason"] in ("JobHeldUser", "job_requeued_in_held_state")
    saved = desk.trial(number).latest_checkpoint
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    trial = desk.trial(number)
    assert saved is not None and trial.runs[1].resumed_from == saved.uuid
    assert trial.restarts == 0
    assert_undisturbed(desk, number)


@pytest.mark.slow
def test_a_node_that_is_set_down(desk: Desk, site: Cluster) -> None:
    """It lives on, and the runner with it, for a while: its code has not failed."""
    number = desk.submit(project(desk, HELD_AT), "max_restarts=0")
    desk.wait_for_steps(number, HELD_AT)
    node = site.job(desk.job(number))["NodeList"]
    site.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        desk.wait_for_state(number, "COMPLETED", "ERROR")
    finally:
        # It may have come back by itself.
        site.command("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.trial(number).restarts == 0
    assert_undisturbed(desk, number)


@pytest.mark.slow
def test_a_dead_node(desk: Desk, site: Cluster) -> None:
    """The node loses power: the trial waits, and goes on elsewhere from its last checkpoint."""
    number = desk.submit(project(desk, HELD_AT))
    desk.wait_for_steps(number, HELD_AT)
    job = desk.job(number)
    node = site.job(job)["NodeList"]
    desk.user.run("scontrol", "hold", job)  # it counts once the job is back in the queue
    site.kill_node(node)
    # Slurm finds out by itself, as tests/cluster shows; the administrator is faster.
    site.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
    try:
        site.wait_state(job, "PENDING")
        shown = desk.run("trial", "describe", str(desk.trial(number).id), "--json").stdout
        assert unwrap(shown)["state"] == "QUEUED"
        desk.user.run("scontrol", "release", job)
        desk.wait_for_state(number, "COMPLETED")
    finally:
        site.boot_node(node)
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["lost", "completed"]
    assert trial.restarts == 0
    assert trial.runs[1].resumed_steps == EPOCH, "the last checkpoint"
    assert_undisturbed(desk, number)


# Fails once its peer is gone, as code does in a collective; then there is nothing left to do.
LOSES_ITS_PEER = """\
    import os, pathlib, sys, time
    import detslurm as det

    gone = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"], "gone")
    print("node", det.get_cluster_info().container_rank, flush=True)
    if not gone.exists():
        while not gone.exists():
            time.sleep(0.1)
        sys.exit(1)
"""


@pytest.mark.slow
def test_a_dead_node_of_several(desk: Desk, site: Cluster) -> None:
    """Until Slurm sees it, minutes later, no step can begin: that uses up no restarts."""
    with site.reshaped(slurmd_timeout=300):
        layout = ("resources.slots_per_trial=2", "slurm.slots_per_node=1")
        number = desk.submit(desk.project(LOSES_ITS_PEER), *layout)
        for rank in range(2):
            desk.wait_for_log(number, f"node {rank}")
        job = site.job(desk.job(number))
        names = site.command("scontrol", "show", "hostnames", job["NodeList"]).split()
        (node,) = set(names) - {job["BatchHost"]}
        site.kill_node(node)
        try:
            (desk.experiment(number).path / "gone").touch()
            desk.wait_for_log(number, f"{node} does not answer, so that the step can't begin")
        finally:
            site.boot_node(node)
        desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["restart", "completed"]
    assert desk.trial(number).restarts == 1
