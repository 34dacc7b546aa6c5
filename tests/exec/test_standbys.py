"""A search's workers when others are gone: standbys, and a queue that does not answer."""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import Mock

import pytest

from detslurm.exec import search_worker, worker_pool
from detslurm.exec.search_worker import SearchTrialQueue
from detslurm.slurm import SlurmError
from detslurm.store import ExperimentDir, StoreFault, fold_facts
from tests.exec.test_search_worker import Desk, busy, desk
from tests.sdk.scenes import Queue, Scene

__all__ = ["busy", "desk"]


@pytest.mark.usefixtures("busy")
def test_a_standby_stands_ready(desk: Desk) -> None:
    """One that waits for the end of all that are alive; a second one only when it is gone."""
    for _ in range(3):
        assert desk.took() == 0
    (standby,) = [r for r in desk.scene.queue.requests if r.dependency]
    assert standby.dependency == "afterany:7"
    facts = fold_facts(desk.experiment)
    assert [(job.standby, job.job_id) for job in facts.jobs] == [(False, "7"), (True, "101")]
    desk.scene.queue.put("101", "RUNNING")
    trial_queue = desk.worker("101")
    assert desk.took(trial_queue) == 1
    assert [r.dependency for r in desk.scene.queue.requests[1:]] == ["afterany:101:7"]


def test_a_standby_that_finds_nothing_to_do_leaves_another_one(desk: Desk) -> None:
    """As long as anybody else works, who may still be killed."""
    desk.others("7_1", "7_2", "8")
    facts = desk.experiment
    facts.append({"type": "submitted", "jobs": [{"job_id": "9", "standby": True}], "request": {}})
    desk.scene.queue.put("9", "RUNNING")
    assert desk.took(desk.worker("9")) is None
    (standby,) = desk.scene.queue.requests
    assert standby.dependency == "afterany:7:8:9"


def test_whoever_leaves_leaves_a_standby(desk: Desk) -> None:
    """Also where the first one has been killed meanwhile."""
    desk.others("7_1", "7_2", "8")
    assert desk.took() is None
    (standby,) = desk.scene.queue.requests
    assert standby.dependency == "afterany:7:8"
    desk.scene.queue.put("101", "PENDING", "Dependency")
    assert desk.took() is None
    assert desk.scene.queue.requests == [standby]


@pytest.mark.parametrize("awaited", ["7", "7_0:7_3"])
def test_a_standby_does_not_wait_for_a_worker_that_is_held(desk: Desk, awaited: str) -> None:
    """Where the one that there is does, another one names the elements that are not."""
    desk.others("7_1", "7_2", "8")
    request = {"dependency": f"afterany:{awaited}"}
    job = {"job_id": "9", "standby": True}
    desk.experiment.append({"type": "submitted", "jobs": [job], "request": request})
    desk.scene.queue.put("9", "PENDING", "Dependency")
    assert desk.took() is None
    assert desk.scene.queue.requests == []
    desk.scene.queue.put("7_3", "PENDING", "launch failed requeued held")
    assert desk.took() is None
    (standby,) = desk.scene.queue.requests
    assert standby.dependency == "afterany:7_0:7_1:7_2:8"
    assert desk.scene.queue.jobs["9"].state == "CANCELLED"
    desk.scene.queue.put("101", "PENDING", "Dependency")
    assert desk.took() is None
    assert desk.scene.queue.requests == [standby]


def test_a_paused_search_gets_no_standby(desk: Desk) -> None:
    """The pause has held the one that there is; a worker that notices it late leaves it so."""
    desk.others("7_1", "7_2", "8")
    job = {"job_id": "9", "standby": True}
    desk.experiment.append({"type": "submitted", "jobs": [job], "request": {}})
    desk.scene.queue.put("9", "PENDING", "JobHeldUser")
    desk.experiment.append({"type": "intent", "intent": "pause"})
    assert desk.took() is None
    assert desk.scene.queue.requests == []


@pytest.mark.usefixtures("busy")
def test_a_job_script_that_cannot_be_written_ends_no_worker(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, say; the standby is tried again at the next look."""
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(desk.scene.queue, "submit", Mock(side_effect=full))
    assert [desk.took(), desk.took()] == [0, 0]


@pytest.mark.usefixtures("busy")
def test_jobs_whose_record_fails_once_are_not_submitted_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby and the workers that lack: nobody would count on a job that no fact names."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    append, failed = ExperimentDir.append, set[str]()

    def hiccup(experiment: ExperimentDir, record: Any, after: int = 0) -> int:
        if record["jobs"][0]["job_id"] not in failed:
            failed.add(record["jobs"][0]["job_id"])
            raise StoreFault("Input/output error", errno.EIO, str(experiment.path))
        return append(experiment, record, after)

    monkeypatch.setattr(ExperimentDir, "append", hiccup)
    assert desk.took() == 0
    for ref in ("7_1", "7_2"):
        desk.scene.queue.put(ref, "COMPLETED")
    assert desk.took() == 0
    assert failed == {"101", "102"} == {job.job_id for job in fold_facts(desk.experiment).jobs[1:]}


@pytest.mark.usefixtures("busy")
def test_a_job_that_nobody_has_recorded_yet_ends_no_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It begins before `submit` has written its number down, or that was killed just then."""
    monkeypatch.setattr(worker_pool, "_LATER", 0.0)
    desk = Desk(scene, job=None)
    assert [desk.took() for _ in range(3)] == [0, 0, 0]
    assert desk.scene.queue.requests == []
    said = capfd.readouterr().out
    assert "no more workers can be submitted: no job was ever submitted" in said
    assert "no standby worker can be submitted: no job was ever submitted" in said
    scene.submitted(desk.experiment, "7", 0, 3)
    scene.queue.put("7_0", "RUNNING")
    assert desk.took() == 0
    assert [r.dependency for r in desk.scene.queue.requests] == ["afterany:7"]


def test_beside_a_held_worker_alone_none_leaves_a_standby(desk: Desk) -> None:
    """It would start at once, and leave the next one."""
    desk.others("7_1", "7_2", "8")
    for ref in ("7_1", "7_2", "8"):
        del desk.scene.queue.jobs[ref]
    job = {"job_id": "9", "standby": True}
    request = {"dependency": "afterany:7"}
    desk.experiment.append({"type": "submitted", "jobs": [job], "request": request})
    desk.scene.queue.put("9", "PENDING", "Dependency")
    desk.scene.queue.put("7_3", "PENDING", "JobHeldUser")
    assert desk.took() is None
    assert desk.scene.queue.requests == []


def silent(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that does not answer until somebody has waited for it."""
    queue.down = True
    monkeypatch.setattr("time.sleep", lambda _: setattr(queue, "down", False))


def test_a_silent_queue_is_waited_for_before_a_worker_leaves(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial that it was told nothing of has nobody else."""
    desk.others("7_1", "7_2", "8")
    desk.scene.queue.put("7_2", "FAILED")
    silent(desk.scene.queue, monkeypatch)
    assert desk.took() == 1


def test_a_trial_that_comes_in_the_silence_is_taken(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever waits for the queue; it need not answer for that."""
    desk.others("7_1", "7_2", "8")
    desk.scene.queue.down = True
    freed = desk.state().run_ended_events({"7_2": "released"})
    monkeypatch.setattr("time.sleep", lambda _: desk.log.commit(freed))
    assert desk.took() == 1


def test_a_queue_that_cannot_be_asked_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without Slurm's commands will not have them later."""
    desk.others("7_1", "7_2", "8")
    missing = Mock(side_effect=SlurmError("squeue: command not found"))
    monkeypatch.setattr(desk.scene.queue, "query", missing)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it has waited"))
    assert desk.took() is None


def test_a_silent_queue_does_not_keep_a_worker_that_is_not_wanted(desk: Desk) -> None:
    """The user's word counts before the answer."""
    desk.others("7_1", "7_2", "8")
    desk.scene.queue.down = True
    desk.experiment.append({"type": "intent", "intent": "pause"})
    assert desk.took() is None


def test_a_standby_that_goes_on_alone_waits_for_a_silent_queue(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should it be killed at its first trial another one stands ready."""
    trial_queue = standby_after(desk, None)
    silent(desk.scene.queue, monkeypatch)
    assert desk.took(trial_queue) == 0
    assert [r.dependency for r in desk.scene.queue.requests] == ["afterany:7:9"]


def standby_after(desk: Desk, dependency: str | None) -> SearchTrialQueue:
    """A standby worker that Slurm has started, after the end of these jobs."""
    request = {"dependency": dependency}
    job = {"job_id": "9", "standby": True}
    desk.experiment.append({"type": "submitted", "jobs": [job], "request": request})
    desk.scene.queue.put("9", "RUNNING")
    return desk.worker("9")


def test_a_standby_comes_when_those_before_it_have_ended(desk: Desk) -> None:
    """Whom Slurm has forgotten since, as a site may make it do within seconds, is lost."""
    desk.others("7_1", "7_2", "8")
    del desk.scene.queue.jobs["7_1"], desk.scene.queue.jobs["8"]
    assert desk.took(standby_after(desk, "afterany:7:70")) == 0
    state = desk.state()
    assert (state.trials[0].lost, state.workers) == (1, {"7_2": 1, "8": 2, "9": 0})


def test_a_search_that_ends_with_a_dead_worker_is_said_to_be_over(desk: Desk) -> None:
    """Its last trial had reported all; whoever comes after it says what it could not say."""
    while desk.state().created < 6 or not all(trial.settled for trial in desk.state().trials):
        index = desk.took()
        assert index is not None
        desk.finish(index)
    assert not desk.state().done
    desk.scene.queue.put("7_0", "FAILED")
    assert desk.took(standby_after(desk, "afterany:7")) is None
    assert desk.state().done
    assert fold_facts(desk.experiment).closed is not None
    assert desk.scene.queue.requests == []


def test_a_standby_with_nobody_beside_it_leaves_none(desk: Desk) -> None:
    """Of whom nothing is known Slurm would start one after the other."""
    desk.others("7_1", "7_2", "8")
    desk.scene.queue.jobs.clear()
    assert desk.took(standby_after(desk, None)) is None
    assert desk.scene.queue.requests == []


def test_silence_is_no_evidence(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that the queue does not name keeps its trial until accounting knows its end."""
    desk.others("7_1", "7_2", "8")
    del desk.scene.queue.jobs["7_1"]
    assert desk.took() is None
    desk.scene.queue.down = True
    monkeypatch.setattr(search_worker, "_IDLE_PATIENCE", 0.0)
    assert desk.took() is None
    desk.scene.queue.down = False
    desk.scene.queue.put("7_1", "CANCELLED")
    desk.scene.queue.remembered["7_1"] = desk.scene.queue.jobs.pop("7_1")
    assert desk.took() == 0
