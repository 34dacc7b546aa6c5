"""Experiments of which limits let only a part be submitted, seen from outside of their jobs."""

from __future__ import annotations

import time

import pytest

from detslurm._base.process import Identity, node
from detslurm.sdk.errors import LifecycleError
from detslurm.slurm import Allowance, ClusterLimits, JobRequest, SubmitLimitReached
from detslurm.store import ExperimentDir, fold_facts
from detslurm.store.records import Deferred, Sending
from tests.sdk.scenes import SEARCH, Scene

LIMIT = "MaxSubmitJobsPerUser=2 of QOS normal"


def partly(scene: Scene, *, over: bool = False) -> ExperimentDir:
    """Two trials of five were submitted; they go on, or are over."""
    experiment = scene.experiment(5, job=None)
    charge = {"user": "alice"}
    experiment.append(Deferred(first_index=2, count=3, limit=LIMIT, charge=charge))
    scene.submitted(experiment, "7", 0, 2)
    for index in (0, 1) if over else ():
        scene.run(experiment, index, ref=f"7_{index}", end="completed")
    return experiment


def test_what_is_not_submitted_is_said_once(scene: Scene) -> None:
    """By the experiment, not by each trial; and what to do when no job is left."""
    experiment = partly(scene)
    found = scene.client.experiment(1)
    assert found.view.submission == f"2 of 5 submitted (limit {LIMIT})"
    assert found.message == found.view.submission
    assert found.view.trial_states == {"QUEUED": 5}
    assert [found.job_status(trial) for trial in (3, 4, 5)] == [None] * 3
    for index in (0, 1):
        scene.run(experiment, index, ref=f"7_{index}", end="completed")
    assert str(scene.client.experiment(1).message).endswith("`detslurm e activate 1` submits more")


def test_activate_submits_more_where_there_is_room(scene: Scene) -> None:
    """Also what a job has announced that is gone."""
    experiment = partly(scene)
    experiment.append(Sending(first_index=2, count=1, job="7_0"))
    scene.queue.put("7_0", "FAILED")
    scene.queue.put("7_1", "RUNNING")
    scene.queue.allowed = Allowance(room=2)
    scene.client.experiment(1).activate()
    sent = [(r.count or 1, r.command[-1]) for r in scene.queue.requests]
    assert sent == [(1, "0"), (2, "2")], "the lost trial, and two more"
    assert fold_facts(experiment).unsubmitted == {4}


def test_activate_says_that_there_is_no_room(scene: Scene) -> None:
    partly(scene, over=True)
    scene.queue.allowed = Allowance(room=0)
    with pytest.raises(LifecycleError, match=f"no room for another job .* {LIMIT}"):
        scene.client.experiment(1).activate()
    assert scene.queue.requests == []


def test_activate_leaves_alone_what_another_one_is_about_to_submit(scene: Scene) -> None:
    """A call of sbatch takes minutes while the controller is busy."""
    experiment = partly(scene, over=True)
    experiment.append(Sending(first_index=2, count=3, process=str(Identity.own())))
    scene.queue.allowed = Allowance(room=9)
    with pytest.raises(LifecycleError, match=r"another command is submitting .*in 15 min"):
        scene.client.experiment(1).activate()
    assert scene.queue.requests == []


def test_activate_takes_over_from_a_command_that_is_gone(scene: Scene) -> None:
    """Killed on this machine, or long ago on another one."""
    experiment = partly(scene, over=True)
    killed = Sending(first_index=2, count=1, process=f"{node()}-{2**22 + 1}-7")
    elsewhere = Sending(first_index=3, count=2, process="ab-12-7", time=time.time() - 3600)
    for announced in (killed, elsewhere):
        experiment.append(announced)
    scene.queue.allowed = Allowance(room=9)
    scene.client.experiment(1).activate()
    assert [(r.count, r.command[-1]) for r in scene.queue.requests] == [(3, "2")]
    assert fold_facts(experiment).unsubmitted == set()


@pytest.mark.parametrize(("room", "queued"), [(9, [2, 2, None]), (3, [2, None]), (2, [2])])
def test_activate_queues_workers_by_arrays_that_the_site_accepts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, room: int, queued: list[int | None]
) -> None:
    """More workers than one array may have, as far as there is room for them."""
    text = SEARCH.replace("max_concurrent_trials: 3", "max_concurrent_trials: 5")
    experiment, _ = scene.search(text, workers=5)
    scene.queue.jobs.clear()
    submit = scene.queue.submit

    def submit_within(request: JobRequest) -> str:
        if len(scene.queue.jobs) + (request.count or 1) > room:
            raise SubmitLimitReached("QOSMaxSubmitJobPerUserLimit")
        return submit(request)

    monkeypatch.setattr(scene.queue, "submit", submit_within)
    monkeypatch.setattr(scene.queue, "limits", lambda: ClusterLimits(max_array_size=3))
    scene.client.experiment(experiment.id).activate()
    assert [request.count for request in scene.queue.requests] == queued
    assert len(fold_facts(experiment).jobs) == 1 + len(queued)


@pytest.mark.parametrize("how", ["kill", "cancel"])
def test_trials_without_a_job_end_with_the_experiment(scene: Scene, how: str) -> None:
    partly(scene)
    getattr(scene.client.experiment(1), how)()
    found = scene.client.experiment(1)
    assert found.state == "CANCELED"
    assert found.view.submission == ""


def test_one_without_a_job_is_killed(scene: Scene) -> None:
    partly(scene)
    scene.client.trial(4).kill()
    states = [trial.state for trial in scene.client.experiment(1).trial_rows]
    assert states == ["QUEUED"] * 3 + ["CANCELED", "QUEUED"]
