"""What is submitted later for an experiment: by its configuration, and by what was set since."""

from __future__ import annotations

import errno
import os

import pytest

from detslurm.exec.unmanaged_claims import JobStep, open_trials
from detslurm.jobs import resubmit
from detslurm.jobs.resubmit import standby_request, successor_request, workers_request
from detslurm.slurm import Allocation, JobInfo, JobRequest, SlurmError, user_script
from detslurm.store import ExperimentDir, TrialDir, fold_facts
from tests.sdk.scenes import Scene


def test_all_that_is_submitted_later_has_what_was_set(scene: Scene) -> None:
    """Successors of trials, workers of a search and the one that stands by."""
    experiment, _ = scene.search()
    stored = scene.client.stored(experiment.id)
    stored.set_weight(2)
    stored.set_priority(7)
    stored.set_resource_pool("low")
    stored.set_qos("long")
    facts = list(experiment.facts())
    later = (
        successor_request(facts, experiment, 0),
        workers_request(facts, experiment, 2),
        standby_request(facts, experiment, ["7"]),
    )
    assert {(r.nice, r.partition, r.qos) for r in later} == {(6, "low", "long")}


def test_several_arrays_share_max_slots(scene: Scene) -> None:
    """Each has its own throttle: together they keep the limit. One that waits for another array to
    end takes its turn; what all of them need at least is said."""
    submitted = scene.experiment(12, job=None)
    for job, first, count in (("7", 0, 5), ("8", 5, 5), ("9", 10, 2)):
        scene.submitted(submitted, job, first, count)
    experiment = scene.client.experiment(1)
    experiment.set_max_slots(5)
    assert _throttles(scene) == {"7": 2, "8": 2, "9": 1}
    experiment.set_max_slots(2)
    assert _throttles(scene) == {"7": 1, "8": 1, "9": 1}
    assert "3 arrays" in scene.warnings.pop()
    for index in range(5):
        scene.queue.put(f"8_{index}", "PENDING", "Dependency")
    experiment.set_max_slots(3)
    assert _throttles(scene) == {"7": 2, "8": 1, "9": 1}  # it may be 9 that it waits for
    assert not scene.warnings


def test_jobs_of_one_trial_share_max_slots_with_arrays(scene: Scene) -> None:
    """As scattered trials have them after `activate`."""
    submitted = scene.experiment(8, job=None)
    for job, first, count in (("7", 0, 5), ("8", 5, 1), ("9", 6, 1)):
        scene.submitted(submitted, job, first, count)
    experiment = scene.client.experiment(1)
    experiment.set_max_slots(4)
    assert _throttles(scene) == {"7": 2}
    experiment.set_max_slots(2)
    assert _throttles(scene) == {"7": 1}
    assert "1 array and 2 jobs of one trial" in scene.warnings.pop()
    scene.queue.put("9", "PENDING", "Dependency")
    experiment.set_max_slots(3)
    assert _throttles(scene) == {"7": 2}


def _throttles(scene: Scene) -> dict[str, int]:
    """How many elements of each array may run at once, as it was set last."""
    updates = (call for call in scene.queue.calls if call[0] == "update")
    return {ref: fields["ArrayTaskThrottle"] for _, ref, fields in updates}


@pytest.mark.parametrize(
    ("gone", "at_once", "queued"),
    [
        # Count and throttle of each job, and the job whose end it waits for.
        ({0, 2, 4, 6, 8}, 2, [(None, None, after) for after in (None, None, "101", "102", "103")]),
        ({0, 2, 3, 4, 5, 6}, 3, [(None, None, None), (5, 2, None)]),
        ({0, 2, 3}, 9, [(None, None, None), (2, None, None)]),
    ],
)
def test_scattered_trials_keep_to_what_may_run_at_once(
    scene: Scene,
    gone: set[int],
    at_once: int,
    queued: list[tuple[int | None, int | None, str | None]],
) -> None:
    """The limit is one of all jobs together; where these are more, each waits for another's end."""
    experiment = scene.experiment(9, job="7")
    scene.client.stored(1).set_max_slots(at_once)
    for index in range(9):
        scene.queue.put(f"7_{index}", "CANCELLED")
        if index not in gone:
            scene.run(experiment, index, ref=f"7_{index}", end="completed")
    scene.client.experiment(1).activate()
    assert [
        (r.count, r.throttle, r.dependency and r.dependency.removeprefix("afterany:"))
        for r in scene.queue.requests
    ] == queued


def test_a_pool_that_the_cluster_refuses_is_not_recorded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all runs, no job is there to be moved, and a name that is wrong would end what is
    submitted later. That there are as many jobs as there may be says nothing against a name."""
    experiment = scene.experiment(job="7")
    scene.queue.put("7", "RUNNING")
    asked, message = [], "Batch job submission failed: Invalid partition name specified"

    def check(request: JobRequest) -> None:
        asked.append((request.partition, request.qos))
        raise SlurmError(message)

    monkeypatch.setattr(scene.queue, "check", check)
    with pytest.raises(SlurmError, match="Invalid partition"):
        scene.client.stored(1).set_resource_pool("lwo")
    assert fold_facts(experiment).desired.fields == {}
    message = "QOSMaxSubmitJobPerUserLimit\nJob violates accounting/QOS policy (job submit limit)"
    scene.client.stored(1).set_qos("night")
    assert asked == [("lwo", None), (None, "night")]
    assert fold_facts(experiment).desired.fields == {"qos": "night"}


def test_a_pool_is_not_recorded_while_the_queue_is_silent(scene: Scene) -> None:
    """What waits stays where it is then, and nobody would move it later."""
    experiment = scene.experiment(job="7")
    scene.queue.down = True
    with pytest.raises(SlurmError, match="nothing was changed"):
        scene.client.stored(1).set_resource_pool("low")
    assert fold_facts(experiment).desired.fields == {}
    scene.client.stored(1).set_priority(3)
    assert "once the queue answers" in scene.warnings[-1]


def test_a_configuration_behind_a_stale_handle_is_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As shared file systems have it now and then; it would end a successor's submission."""
    submitted, _ = scene.search()
    experiment = ExperimentDir.at(submitted.path)  # it has not read its configuration yet
    facts, real = list(experiment.facts()), os.read
    failures = [OSError(errno.ESTALE, "Stale file handle")]

    def stale(handle: int, size: int) -> bytes:
        if failures:
            raise failures.pop()
        return real(handle, size)

    monkeypatch.setattr(os, "read", stale)
    assert successor_request(facts, experiment, 0).command[-1] == "0"
    assert not failures


def test_a_submission_that_broke_off_between_arrays_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine went down, say: the trials of the arrays that were not queued any more are, once
    it is sure that no command is about to."""
    experiment = scene.experiment(trials=4, job=None)
    scene.submitted(experiment, "7", 0, 2)
    with pytest.raises(SlurmError, match="may go on just now"):
        scene.client.experiment(experiment.id).activate()
    monkeypatch.setattr(resubmit, "COMMAND_PATIENCE", 0.0)
    scene.client.experiment(experiment.id).activate()
    (request,) = scene.queue.requests
    assert request.count == 2 and request.command[-1] == "2"
    assert [(job.first_index, job.count) for job in fold_facts(experiment).jobs] == [(0, 2), (2, 2)]


def _claim(scene: Scene, step: JobStep) -> TrialDir:
    return next(open_trials(scene.store, step, "slurm", make=True))[0]


def test_one_job_goes_on_with_all_that_a_script_has_begun(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node has died with a job of two trainings: where its user activates both, the script runs
    once, for two jobs of it would take each trial from the other."""
    recipe: dict[str, object] = {"options": [], "variables": [], "arguments": [], "throttle": None}
    monkeypatch.setattr(user_script, "keep", lambda *_: recipe)
    monkeypatch.setattr("detslurm.slurm.detect_cluster", lambda *_: scene.queue)
    submitted: list[str] = []

    def submit_again(*_: object) -> str:
        submitted.append(str(100 + len(submitted)))
        scene.queue.put(submitted[-1], "PENDING", "JobHeldUser")
        return submitted[-1]

    monkeypatch.setattr(user_script, "submit_again", submit_again)
    allocation = Allocation(cluster="slurm", job_id="7", nodes=("n1",))
    for name in ("0", "1"):
        trial = _claim(scene, JobStep(allocation, name, ["train.py", name]))
        trial.open_run({"job": allocation.record(), "hparams": {}, "seed": 0})
    scene.queue.remembered["7"] = JobInfo(ref="7", state="NODE_FAIL")
    for number in (1, 2, 1, 2):
        scene.client.experiment(number).activate()
    assert submitted == ["100"]
    jobs = [fold_facts(scene.store.experiment(number)).jobs[-1].refs for number in (1, 2)]
    assert [list(refs) for refs in jobs] == [["100"], ["100"]]
    # The script's third training has begun in the second job.
    second = Allocation(cluster="slurm", job_id="100", nodes=("n1",))
    trial = _claim(scene, JobStep(second, "2", ["train.py", "2"]))
    trial.open_run({"job": second.record(), "hparams": {}, "seed": 0})
    scene.queue.put("100", "CANCELLED")
    for number in (3, 2):
        scene.client.experiment(number).activate()
    assert submitted == ["100", "101"]
    third = Allocation(cluster="slurm", job_id="101", nodes=("n1",))
    again = _claim(scene, JobStep(third, "2", ["train.py", "2"]))
    assert again.id == trial.id
