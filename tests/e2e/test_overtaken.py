"""Somebody else acts on the job while its runner is on its way out."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_failures import let_go

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

# Waits at step 3 until somebody wants it to leave, or lets it go on.
COUNTS = """\
    import json, os, pathlib, time
    import detslurm as det

    with det.core.init() as core:
        latest = det.get_cluster_info().latest_checkpoint
        step = 0
        if latest:
            with core.checkpoint.restore_path(latest) as path:
                step = json.loads((path / "step").read_text())
        go = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "go"
        while step < 60:
            step += 1
            core.train.report_training_metrics(step, {"loss": 1.0})
            while step == 3 and not go.exists() and not core.preempt.should_preempt():
                time.sleep(0.05)
            if core.preempt.should_preempt():
                with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "step").write_text(json.dumps(step))
                break
    """


def test_activate_right_after_pause(desk: Desk) -> None:
    """The user's latest intent counts, also while the code is still saving."""
    number = desk.submit(desk.project(COUNTS))
    desk.wait_for_steps(number, 3)
    desk.run("experiment", "pause", str(number))
    desk.run("experiment", "activate", str(number))
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number)[-1] == "completed"
    assert [row.steps for row in desk.metrics(number)] == list(range(1, 61))


def test_requeued_by_hand(desk: Desk, site: Cluster) -> None:
    """`scontrol requeue`: the trial goes on in the same job, and no successor is queued; once more
    after its end, as Slurm may do by itself from 24.05 on, changes nothing."""
    number = desk.submit(desk.project(COUNTS))
    desk.wait_for_steps(number, 3)
    site.command("scontrol", "requeue", desk.job(number))
    wait_for(lambda: desk.outcomes(number)[0] is not None, PATIENCE, "the end of the first run")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["preempted", "completed"]
    job, said = desk.job(number), next(desk.experiment(number).jobs.glob("*.out"))
    site.wait_state(job, "COMPLETED")
    site.command("scontrol", "requeue", job)
    wait_for(lambda: "is over: COMPLETED" in said.read_text(), PATIENCE, "the third start")
    site.wait_state(job, "COMPLETED")
    assert desk.outcomes(number) == ["preempted", "completed"]
    assert desk.view(number).state == "COMPLETED"
    assert len(desk.view(number).jobs) == 1
    assert [row.steps for row in desk.metrics(number)] == list(range(1, 61))
