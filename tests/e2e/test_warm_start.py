"""A search whose trials are forks of one interpreter, beside the same search with new processes."""

from __future__ import annotations

import re

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import processes_of
from tests.e2e.test_main_job import make_room
from tests.e2e.test_search import ASHA, LEARNS, assert_sound, hold_back, let_go, outcomes, project

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

# Each trial tells its parent, and leaves in its process what the next must not find.
MARKED = (
    """\
    import csv, os, signal
    assert "LEFT" not in os.environ and not hasattr(csv, "mark")
    print("parent", os.getppid(), flush=True)
    os.environ["LEFT"] = csv.mark = "1"
"""
    + LEARNS
)
ONE_WORKER = ("searcher.max_concurrent_trials=1", "slurm.warm_start=true")


def parents(desk: Desk, number: int) -> list[str]:
    """The parents of all runs, in the order of the trials."""
    logs = [desk.log(number, index) for index in range(len(desk.view(number).trials))]
    return re.findall(r"parent (\d+)", "".join(logs))


def test_trials_are_forks_of_one_interpreter(desk: Desk, site: Cluster) -> None:
    """The search decides as with new processes. A preempted one goes on, where it was, in a new
    job; nothing is left on the node."""
    config = project(desk, MARKED, ASHA)
    cold = desk.submit(config, ONE_WORKER[0])
    warm = desk.submit(config, *ONE_WORKER, "resources.resource_pool=low", "--paused")
    hold_back(desk, warm)
    desk.run("experiment", "activate", str(warm))
    desk.wait_for_log(warm, "waiting")
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    wait_for(lambda: outcomes(desk, warm)["preempted"] == 1, PATIENCE, "the trial to leave")
    let_go(desk, warm)
    for number in (cold, warm):
        desk.wait_for_state(number, "COMPLETED", "ERROR")

    then, now = assert_sound(desk, cold), assert_sound(desk, warm)
    assert [(t.metric, t.reached) for t in now.trials] == [
        (t.metric, t.reached) for t in then.trials
    ]
    assert outcomes(desk, warm) == outcomes(desk, cold) | {"preempted": 1}
    assert len({*parents(desk, warm)}) == 2 < len(parents(desk, warm))
    assert len({*parents(desk, cold)}) > 2
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")
    assert not processes_of(desk, warm)


def test_a_failing_trial_costs_the_others_nothing(desk: Desk) -> None:
    """It ends its agent and interpreter; the next trials begin with new ones, in the same job."""
    script = """\
        import os, detslurm as det
        number = det.get_cluster_info().trial.hparams["x"]
        print("parent", os.getppid(), flush=True)
        if number == 2:
            os.kill(os.getpid(), 9)
        with det.core.init() as core:
            core.train.report_validation_metrics(1, {"loss": number})
        """
    config = project(
        desk,
        script,
        """\
        hyperparameters: {x: {type: int, minval: 0, maxval: 4, count: 5}}
        searcher: {name: grid, metric: loss, max_concurrent_trials: 1}
        max_restarts: 0
        """,
    )
    number = desk.submit(config, "slurm.warm_start=true", "slurm.trials_per_job=5")
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    ends = [desk.outcomes(number, index)[-1] for index in range(5)]
    assert ends == ["completed", "completed", "error", "completed", "completed"]
    first, second, third, fourth, last = parents(desk, number)
    assert (first == second == third, fourth == last) == (True, True)
    assert third != fourth
