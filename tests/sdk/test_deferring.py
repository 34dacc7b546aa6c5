"""Experiments of which limits let only a part be submitted, seen from outside of their jobs."""

from __future__ import annotations

import time

import pytest

from detslurm._process import Identity, node
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.jobs.status import JobRef
from detslurm.slurm import ClusterLimits, JobRequest, SlurmError, SubmitLimitReached
from detslurm.slurm.allowance import Allowance, Charge
from detslurm.slurm.deferred import take
from detslurm.slurm.resubmit import submitted_fact
from detslurm.store import ExperimentDir, fold_facts
from detslurm.store.records import Deferred, Sending
from tests.sdk.scenes import SEARCH, Scene

LIMIT = "MaxSubmitJobsPerUser=2 of QOS normal"


def partly(scene: Scene) -> ExperimentDir:
    """Two trials of five were submitted."""
    experiment = scene.experiment(5, job=None)
    charge = {"user": "alice"}
    experiment.append(Deferred(first_index=2, count=3, limit=LIMIT, charge=charge))
    scene.submitted(experiment, "7", 0, 2)
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
    experiment = partly(scene)
    for index in (0, 1):
        scene.run(experiment, index, ref=f"7_{index}", end="completed")
    scene.queue.allowed = Allowance(room=0)
    with pytest.raises(LifecycleError, match=f"no room for another job .* {LIMIT}"):
        scene.client.experiment(1).activate()
    assert scene.queue.requests == []


def test_activate_leaves_alone_what_another_one_is_about_to_submit(scene: Scene) -> None:
    """A call of sbatch takes minutes while the controller is busy."""
    experiment = partly(scene)
    for index in (0, 1):
        scene.run(experiment, index, ref=f"7_{index}", end="completed")
    experiment.append(Sending(first_index=2, count=3, process=str(Identity.own())))
    scene.queue.allowed = Allowance(room=9)
    with pytest.raises(LifecycleError, match=r"another command is submitting .*in 15 min"):
        scene.client.experiment(1).activate()
    assert scene.queue.requests == []


def test_activate_takes_over_from_a_command_that_is_gone(scene: Scene) -> None:
    """Killed on this machine, or long ago on another one."""
    experiment = partly(scene)
    for index in (0, 1):
        scene.run(experiment, index, ref=f"7_{index}", end="completed")
    killed = Sending(first_index=2, count=1, process=f"{node()}-{2**22 + 1}-7")
    elsewhere = Sending(first_index=3, count=2, process="ab-12-7", time=time.time() - 3600)
    for announced in (killed, elsewhere):
        experiment.append(announced)
    scene.queue.allowed = Allowance(room=9)
    scene.client.experiment(1).activate()
    assert [(r.count, r.command[-1]) for r in scene.queue.requests] == [(3, "2")]
    assert fold_facts(experiment).unsubmitted == set()


class Full:
    """Room for so many jobs in a scene's queue, which it counts."""

    def __init__(self, scene: Scene, room: int) -> None:
        self.room, self._submit = room, scene.queue.submit
        scene.queue.submit = self._submitted  # type: ignore[method-assign]
        scene.queue.allowance = lambda request: self._allowed  # type: ignore[method-assign]
        scene.queue.allowance_now = lambda charge: self._allowed  # type: ignore[method-assign]

    def _submitted(self, request: JobRequest) -> str:
        count = request.count or 1
        if count > self.room:
            raise SubmitLimitReached("QOSMaxSubmitJobPerUserLimit")
        self.room -= count
        return self._submit(request)

    @property
    def _allowed(self) -> Allowance:
        return Allowance(self.room, LIMIT, charge=Charge("alice", "research", "main", ("normal",)))


def lost(scene: Scene, *indices: int, trials: int = 9) -> ExperimentDir:
    """These trials of an array were lost with their jobs; the others are done."""
    experiment = scene.experiment(trials, job="7")
    for index in range(trials):
        scene.queue.put(f"7_{index}", "CANCELLED")
        if index not in indices:
            scene.run(experiment, index, ref=f"7_{index}", end="completed")
    assert scene.client.experiment(1).view.trial_states["ERROR"] == len(indices)
    return experiment


def test_activate_queues_lost_trials_as_far_as_there_is_room(scene: Scene) -> None:
    """The rest waits: its jobs go on with it, or another `activate` submits it as it was set."""
    experiment = lost(scene, *range(9))
    full = Full(scene, room=5)
    scene.client.experiment(1).activate()
    assert [(r.count, r.command[-1]) for r in scene.queue.requests] == [(4, "0")]
    found = scene.client.experiment(1)
    assert found.view.trial_states == {"QUEUED": 9}
    assert found.message == f"4 of 9 submitted (limit {LIMIT})"
    assert found.job_status(4) is not None and found.job_status(5) is None
    scene.queue.put("101_0", "RUNNING")
    assert take(experiment, fold_facts(experiment), "slurm", "101_0")
    assert fold_facts(experiment).adopted == {4: "101_0"}
    status = scene.client.experiment(1).job_status(5)
    assert status is not None and status.job_ref == JobRef("slurm", "101_0")
    full.room = 9
    scene.client.experiment(1).set_qos("night")
    scene.client.experiment(1).activate()
    request = scene.queue.requests[-1]
    assert (request.count, request.command[-1], request.qos) == (4, "5", "night")
    assert fold_facts(experiment).unsubmitted == set()
    assert scene.client.experiment(1).message is None


def test_activate_queues_scattered_trials_as_far_as_there_is_room(scene: Scene) -> None:
    """Each of them is a job of its own, now and later; one that began before waits as well."""
    experiment = lost(scene, 0, 2, 4, 6, 8)
    scene.run(experiment, 8, ref="7_8")
    full = Full(scene, room=2)
    scene.client.experiment(1).activate()
    assert [r.command[-1] for r in scene.queue.requests] == ["0", "2"]
    assert fold_facts(experiment).deferred == {4, 6, 8}
    assert scene.client.experiment(1).view.trial_states == {"QUEUED": 5, "COMPLETED": 4}
    full.room = 2
    scene.client.experiment(1).activate()
    assert [r.command[-1] for r in scene.queue.requests[2:]] == ["4", "6"]
    scene.queue.jobs.clear()
    full.room = 4
    scene.client.experiment(1).activate()
    assert [r.command[-1] for r in scene.queue.requests[4:]] == ["0", "2", "4", "6"]
    assert fold_facts(experiment).deferred == {8}, "no error: others of it are in the queue"


def test_activate_says_that_there_is_no_room_for_lost_trials(scene: Scene) -> None:
    """They stay what they are: another try queues them."""
    experiment = lost(scene, 0, 1, trials=3)
    Full(scene, room=0)
    with pytest.raises(SlurmError, match="QOSMaxSubmit"):
        scene.client.experiment(1).activate()
    assert fold_facts(experiment).deferral is None
    assert scene.client.experiment(1).view.trial_states == {"ERROR": 2, "COMPLETED": 1}


def test_lost_trials_of_packed_jobs_wait_one_by_one(scene: Scene) -> None:
    """What one job runs of them may have gaps, where others are done or have jobs."""
    experiment = scene.experiment(9, job=None)
    request = JobRequest(name="det", command=("true",), folder=experiment.jobs, count=3)
    experiment.append(submitted_fact("slurm", "7", 0, request, each=3))
    scene.run(experiment, 4, ref="7_1", end="completed")
    for element in range(3):
        scene.queue.put(f"7_{element}", "FAILED")
    full = Full(scene, room=1)
    scene.client.experiment(1).activate()
    assert [r.command[-2:] for r in scene.queue.requests] == [("0", "3")]
    full.room = 2
    scene.client.experiment(1).activate()
    assert [r.command[-1] for r in scene.queue.requests[1:]] == ["3", "5"]
    assert fold_facts(experiment).deferred == {6, 7, 8}


def test_lost_trials_that_wait_for_room_end_with_the_experiment(scene: Scene) -> None:
    experiment = lost(scene, 0, 2, 4, trials=5)
    Full(scene, room=1)
    scene.client.experiment(1).activate()
    assert fold_facts(experiment).deferred == {2, 4}
    scene.client.experiment(1).cancel()
    found = scene.client.experiment(1)
    assert found.view.trial_states == {"CANCELED": 3, "COMPLETED": 2}


@pytest.mark.parametrize(("room", "queued"), [(9, [2, 2, None]), (3, [2, None]), (2, [2])])
def test_activate_queues_workers_by_arrays_that_the_site_accepts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, room: int, queued: list[int | None]
) -> None:
    """More workers than one array may have, as far as there is room for them."""
    text = SEARCH.replace("max_concurrent_trials: 3", "max_concurrent_trials: 5")
    experiment, _ = scene.search(text, workers=5)
    scene.queue.jobs.clear()
    Full(scene, room)
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
