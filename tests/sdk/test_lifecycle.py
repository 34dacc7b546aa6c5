"""Intents become facts first, then calls on the queue."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from detslurm.jobs.resubmit import submitted_fact
from detslurm.sdk.errors import LifecycleError
from detslurm.slurm import ClusterLimits, JobRequest, SlurmError
from detslurm.slurm.hostlist import contiguous_ranges
from detslurm.store import ExperimentDir, RunLog, StoreFault, TrialDir, fold_facts
from detslurm.store.records import Intent
from tests.sdk.scenes import YAML, Scene


def intents(experiment: ExperimentDir) -> list[str]:
    return [fact["intent"] for fact in experiment.facts() if fact["type"] == "intent"]


def test_pause_holds_what_waits_and_notifies_what_runs(scene: Scene) -> None:
    """One hold and one notification for the whole array; the intent is in the store."""
    experiment = scene.experiment(4, job="7")
    scene.run(experiment, 0, ref="7_0")
    scene.queue.put("7_0", "RUNNING")
    scene.client.experiment(1).pause()
    assert intents(experiment) == ["pause"]
    assert scene.queue.calls == [("hold", "7"), ("notify", "7")]
    assert scene.client.experiment(1).state == "PAUSED"


def test_a_pause_names_trials_that_will_not_hear_it(scene: Scene) -> None:
    """Code that has never called should_preempt() trains on; other code gets no warning."""
    experiment = scene.experiment(3, job="7")
    for index in range(2):
        trial = scene.run(experiment, index, ref=f"7_{index}")
        scene.queue.put(f"7_{index}", "RUNNING")
    scene.client.experiment(1).pause()
    (text,) = scene.warnings
    assert text.startswith("Trials 1, 2 still run, and the code has not called should_preempt()")
    assert "killed, 3,600 seconds after it was asked to stop (preemption_timeout)." in text
    with RunLog.open(trial.records_path(1)) as log:
        log.append({"t": "asks_to_preempt"})
    scene.warnings.clear()
    scene.client.experiment(1).cancel()
    assert scene.warnings == []
    assert "the code is to save and leave" in (scene.client.experiment(1).running_on() or "")


def test_activate_releases_what_is_held(scene: Scene) -> None:
    """After a pause the same jobs go on; none is submitted."""
    experiment = scene.experiment(2, job="7")
    scene.client.experiment(1).pause()
    scene.client.experiment(1).activate()
    assert intents(experiment) == ["pause", "activate"]
    assert scene.queue.calls[-1] == ("release", "7")
    assert all(job.reason == "Priority" for job in scene.queue.jobs.values())
    assert scene.queue.requests == []
    assert scene.client.experiment(1).state == "ACTIVE"


def test_activate_queues_again_what_lost_its_job(scene: Scene) -> None:
    """Trials without a job get new ones, neighbours as one array, with what was set since."""
    experiment = scene.experiment(5, job="7")
    scene.client.experiment(1).set_max_slots(2)
    scene.client.experiment(1).set_priority(3)
    scene.run(experiment, 2, ref="7_2", end="completed")
    for index in (0, 1, 4):
        scene.queue.put(f"7_{index}", "CANCELLED")
    assert scene.client.experiment(1).view.trial_states == {"ERROR": 3, "COMPLETED": 1, "QUEUED": 1}
    scene.client.experiment(1).activate()
    requests = [(r.elements, r.command[-1], r.nice) for r in scene.queue.requests]
    assert requests == [((0, 1), "0", 2), ((), "4", 2)]
    after = scene.client.experiment(1)
    assert after.view.trial_states == {"QUEUED": 4, "COMPLETED": 1}
    status = after.trials()[4].job_status
    assert status is not None and status.job_ref is not None and status.job_ref.ref == "102"


def test_activate_goes_on_where_a_submission_broke_off(scene: Scene) -> None:
    """A trial that nobody remembers a job of is queued again when the user asks."""
    scene.experiment(job="7")
    scene.queue.jobs.clear()
    scene.client.experiment(1).activate()
    assert len(scene.queue.requests) == 1


def test_activate_submits_nothing_while_the_queue_is_silent(scene: Scene) -> None:
    """Without an answer nobody knows whether the job lives: nothing is queued twice."""
    experiment = scene.experiment(job="7")
    scene.queue.down = True
    with pytest.raises(LifecycleError, match=r"slurm does not answer.*again"):
        scene.client.experiment(1).activate()
    assert intents(experiment) == ["activate"]
    assert scene.queue.requests == []
    assert scene.warnings


def test_activate_says_when_nothing_was_released(scene: Scene) -> None:
    """What is held stays held until somebody releases it: no runner is there to see the intent."""
    scene.experiment(job="7")
    scene.client.experiment(1).pause()

    def refuse(refs: list[str]) -> None:
        raise SlurmError("Socket timed out on send/recv operation")

    scene.queue.release = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(LifecycleError, match="again"):
        scene.client.experiment(1).activate()


def test_activate_keeps_to_the_largest_array(scene: Scene) -> None:
    """What was submitted as several arrays comes back as several, which share the throttle."""
    scene.experiment(7, job="7")
    scene.client.experiment(1).set_max_slots(3)
    for index in range(7):
        scene.queue.put(f"7_{index}", "CANCELLED")
    limits = ClusterLimits(cluster="test", max_array_size=3)
    scene.queue.limits = lambda: limits  # type: ignore[method-assign]
    scene.client.experiment(1).activate()
    assert [(r.count, r.throttle, r.command[-1]) for r in scene.queue.requests] == [
        (3, 1, "0"),
        (2, 1, "3"),
        (2, 1, "5"),
    ]
    assert scene.client.experiment(1).view.trial_states == {"QUEUED": 7}


class TestPacked:
    """Jobs that run several trials each, one after the other."""

    @pytest.fixture
    def experiment(self, scene: Scene) -> ExperimentDir:
        """Eight trials, four a job; all workers are gone but the second, which is at trial 5."""
        experiment = scene.experiment(8, job=None)
        request = JobRequest(name="det", command=("true",), folder=experiment.jobs, count=2)
        experiment.append(submitted_fact("slurm", "7", 0, request, each=4))
        scene.run(experiment, 0, ref="7_0", end="completed")
        scene.run(experiment, 4, ref="7_1")
        scene.queue.put("7_0", "FAILED")
        scene.queue.put("7_1", "RUNNING")
        return experiment

    def test_activate_takes_no_trial_from_a_job_that_lives(
        self, scene: Scene, experiment: ExperimentDir
    ) -> None:
        """What is left of a lost job's share is the whole share of the new one."""
        found = scene.client.experiment(experiment.id)
        assert found.view.trial_states == {"COMPLETED": 1, "ERROR": 3, "RUNNING": 1, "QUEUED": 3}
        found.activate()
        assert [request.command[-2:] for request in scene.queue.requests] == [("1", "3")]
        after = scene.client.experiment(experiment.id).trials()
        refs = [trial.job_status and trial.job_status.job_ref for trial in after]
        assert [job_ref and job_ref.ref for job_ref in refs[1:]] == ["101"] * 3 + ["7_1"] * 4

    def test_killing_a_trial_leaves_its_neighbours_alone(
        self, scene: Scene, experiment: ExperimentDir
    ) -> None:
        """The runner ends a trial that it is at, and passes over one that waits."""
        assert scene.client.trial(6).kill()
        assert scene.queue.calls == [("notify", "7_1")]
        assert scene.client.trial(6).state == "CANCELED"
        assert scene.client.trial(5).state == "RUNNING"


def test_a_replacement_runs_in_the_job_of_what_it_replaces(scene: Scene) -> None:
    """Its job is looked at, killed, declared lost and submitted again like any other's."""
    experiment = scene.experiment(2, job="7")
    scene.run(experiment, 1, ref="7_1", end="invalid_hp")
    replacement = scene.store.reserve_trials(experiment.id, 1)
    experiment.append({"type": "trials", "first_trial": replacement, "trials": 1, "replaces": 1})
    scene.run(experiment, 2, ref="7_1")
    scene.queue.put("7_0", "RUNNING")
    scene.queue.put("7_1", "FAILED")
    assert scene.client.trial(replacement).state == "ERROR"
    scene.client.experiment(1).activate()
    assert [request.command[-1] for request in scene.queue.requests] == ["1"]
    assert scene.client.trial(replacement).state == "RUNNING"
    scene.queue.put("101", "RUNNING")
    assert scene.client.trial(replacement).kill()
    assert scene.queue.calls[-1] == ("cancel", "101")


def test_cancel_removes_what_waits_and_notifies_what_runs(scene: Scene) -> None:
    """Running trials may checkpoint; waiting ones never start."""
    experiment = scene.experiment(2, job="7")
    scene.run(experiment, 0, ref="7_0")
    scene.queue.put("7_0", "RUNNING")
    assert scene.client.experiment(1).cancel()
    assert intents(experiment) == ["cancel"]
    assert scene.queue.jobs["7_0"].state == "RUNNING"
    assert scene.queue.jobs["7_1"].state == "CANCELLED"
    assert ("notify", "7") in scene.queue.calls
    assert scene.client.experiment(1).state == "STOPPING_CANCELED"


def test_kill_ends_every_job_with_one_call(scene: Scene) -> None:
    """All arrays go in one scancel, and killing twice is no error."""
    experiment = scene.experiment(2, job="7")
    scene.submitted(experiment, "8", 1, 1)
    assert scene.client.experiment(1).kill()
    assert intents(experiment) == ["kill"]
    assert scene.queue.calls == [("cancel", "7", "8")]
    assert not scene.client.experiment(1).kill()


def test_another_job_that_was_given_the_id_is_left_alone(scene: Scene) -> None:
    """A cluster that counts anew: the job works in another folder, so that it is none of ours."""
    experiment = scene.experiment(2, job="7")
    scene.submitted(experiment, "8", 1, 1)
    ours = f"/elsewhere/mounted/experiments/{experiment.id}/jobs"
    scene.queue.put("7_0", "RUNNING", folder="/home/alice/other")
    scene.queue.put("8", "RUNNING", folder=ours)
    found = scene.client.experiment(1)
    statuses = [found.job_status(trial) for trial in (1, 2)]
    assert [s is not None and s.alive for s in statuses] == [None, True]
    assert found.kill()
    assert scene.queue.calls == [("cancel", "8")]


@pytest.mark.parametrize("act", ["kill", "cancel", "pause", "kill_trial"])
def test_a_job_that_was_given_the_id_is_left_alone_by_every_command(scene: Scene, act: str) -> None:
    """Commands read the store alone before they act: they query the queue once, and say so."""
    experiment = scene.experiment(job="7")
    scene.queue.put("7", "RUNNING", folder="/home/alice/other")
    found = scene.client.stored(1)
    if act == "kill_trial":
        found.trials()[0].kill()
    else:
        getattr(found, act)()
    assert intents(experiment) == [act]
    assert scene.queue.calls == [] and scene.queue.queries == [["7"]]
    assert ["/home/alice/other" in text for text in scene.warnings] == [True]


def test_kill_trial_ends_exactly_that_element(scene: Scene) -> None:
    """The other trials of the array go on."""
    experiment = scene.experiment(3, job="7")
    assert scene.client.trial(2).kill()
    assert scene.queue.calls == [("cancel", "7_1")]
    assert scene.client.experiment(1).view.trial_states == {"QUEUED": 2, "CANCELED": 1}
    assert not scene.client.trial(2).kill()
    assert intents(experiment) == ["kill_trial"]


@pytest.mark.parametrize("intent", ["pause", "cancel", "kill"])
def test_an_intent_is_recorded_although_the_controller_is_down(scene: Scene, intent: str) -> None:
    """The fact is what counts: runners find it by themselves."""
    experiment = scene.experiment(job="7")
    scene.queue.down = True
    getattr(scene.client.experiment(1), intent)()
    assert intents(experiment) == [intent]
    assert scene.warnings


def test_what_is_over_can_be_neither_paused_nor_activated(scene: Scene) -> None:
    """The refusal names the state; nothing is recorded."""
    experiment = scene.experiment()
    scene.run(experiment, end="completed")
    for act in ("pause", "activate"):
        with pytest.raises(LifecycleError, match="COMPLETED"):
            getattr(scene.client.experiment(1), act)()
    assert intents(experiment) == []


def test_a_killed_experiment_cannot_be_activated(scene: Scene) -> None:
    """Stopping can't be taken back."""
    scene.run(scene.experiment())
    scene.client.experiment(1).kill()
    scene.queue.put("7", "RUNNING")
    with pytest.raises(LifecycleError, match="STOPPING_KILLED"):
        scene.client.experiment(1).activate()


def test_max_slots_throttles_the_array(scene: Scene) -> None:
    """Slots become elements at once, 16 by default; fewer than one trial needs are refused."""
    scene.experiment(4, job="7")
    experiment = scene.client.experiment(1)
    experiment.set_max_slots(2)
    assert scene.queue.calls == [("update", "7", {"ArrayTaskThrottle": 2})]
    experiment.set_max_slots(None)
    assert scene.queue.calls[-1] == ("update", "7", {"ArrayTaskThrottle": 16})
    with pytest.raises(LifecycleError):
        experiment.set_max_slots(0)


def test_priority_becomes_nice(scene: Scene) -> None:
    """1 is first; what lies outside 1..99 is refused."""
    scene.experiment(job="7")
    experiment = scene.client.experiment(1)
    experiment.set_priority(11)
    assert scene.queue.calls == [("update", "7", {"Nice": 10})]
    with pytest.raises(LifecycleError):
        experiment.set_priority(100)


def test_weight_stands_for_a_priority(scene: Scene) -> None:
    """What was set last counts, also for jobs that are submitted later."""
    scene.experiment(job="7")
    experiment = scene.client.experiment(1)
    experiment.set_priority(11)
    experiment.set_weight(2)
    assert scene.queue.calls[-1] == ("update", "7", {"Nice": 20})
    assert experiment.view.desired.fields == {"priority": None, "weight": 2}
    scene.queue.jobs.clear()
    scene.client.experiment(1).activate()
    assert [request.nice for request in scene.queue.requests] == [20]
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LifecycleError, match="positive"):
            experiment.set_weight(wrong)


def test_a_refused_change_keeps_no_other_job_from_being_changed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is reported; a worker that has ended is not asked about."""
    experiment, _ = scene.search()
    for job in ("8", "9"):
        scene.submitted(experiment, job, 0, 1)
    scene.submitted(experiment, "10", 0, 1)
    scene.queue.put("9", "COMPLETED")
    update = scene.queue.update

    def refuses(ref: str, **fields: str | int) -> None:
        if ref in ("7", "8"):
            raise SlurmError(f"job {ref} may not be changed")
        update(ref, **fields)

    monkeypatch.setattr(scene.queue, "update", refuses)
    scene.client.stored(experiment.id).set_priority(3)
    assert scene.queue.calls == [("update", "10", {"Nice": 2})]
    assert ["job 7" in text for text in scene.warnings] == [True, False]
    assert "job 8" in scene.warnings[1]


def test_max_slots_keeps_to_the_trials_at_once(scene: Scene) -> None:
    """More slots than max_concurrent_trials can use throttle by these, and none does, too."""
    text = YAML.replace("max_length: 10", "max_length: 10, max_concurrent_trials: 2")
    scene.experiment(4, job="7", text=text)
    for slots in (1, 9, None):
        scene.client.stored(1).set_max_slots(slots)
    assert [fields["ArrayTaskThrottle"] for _, _, fields in scene.queue.calls] == [1, 2, 2]


def test_settings_show_after_a_reload(scene: Scene) -> None:
    """Names, descriptions, notes and labels are facts, the last one counts."""
    scene.run(scene.experiment(), end="completed")
    assert [row.name for row in scene.client.rows()] == ["test"]
    experiment = scene.client.experiment(1)
    experiment.set_name("a")
    experiment.set_name("$(touch x); 'b'")
    experiment.set_description("long\nstory")
    experiment.set_notes("n")
    experiment.add_label("x")
    experiment.add_label("y")
    experiment.remove_label("x")
    view = experiment.reload().view
    assert (view.name, view.description, view.notes) == ("$(touch x); 'b'", "long\nstory", "n")
    assert view.labels == ("y",)
    assert [row.name for row in scene.client.rows()] == ["$(touch x); 'b'"]


@pytest.mark.parametrize("wrong", [None, 5, [1, 2], "", " ", "\x1b[31mred", "a\nb"])
def test_settings_are_checked_before_they_are_stored(scene: Scene, wrong: Any) -> None:
    """What no command could show is refused, and nothing is stored."""
    directory = scene.experiment()
    experiment = scene.client.experiment(1)
    before = fold_facts(directory).count
    for change in (experiment.set_name, experiment.add_label):
        with pytest.raises((TypeError, LifecycleError), match=r"name|label"):
            change(wrong)
    for labels in ([wrong], "abc"):
        with pytest.raises((TypeError, LifecycleError), match="label"):
            experiment.set_labels(labels)
    numbers: list[Any] = ["1", True, 1.5]
    for number in numbers:
        with pytest.raises(TypeError, match="max_slots"):
            experiment.set_max_slots(number)
        with pytest.raises(TypeError, match="priority"):
            experiment.set_priority(number)
    if wrong not in ("", " ", "a\nb"):
        for setter in (experiment.set_description, experiment.set_notes):
            with pytest.raises((TypeError, LifecycleError)):
                setter(wrong)
    assert fold_facts(directory).count == before


def test_archived_experiments_leave_the_list(scene: Scene) -> None:
    """They come back on demand; only what is over can be archived."""
    scene.run(scene.experiment(), end="completed")
    scene.experiment(job="8")
    scene.client.experiment(1).archive()
    with pytest.raises(LifecycleError, match="ACTIVE"):
        scene.client.experiment(2).archive()
    assert [row.id for row in scene.client.rows()] == [2]
    assert [row.id for row in scene.client.rows(archived=True)] == [1, 2]
    scene.client.experiment(1).unarchive()
    assert [row.id for row in scene.client.rows()] == [1, 2]


def test_delete_removes_everything_but_the_ids(scene: Scene) -> None:
    """Checkpoints, logs and code go; ids are never given again; deleting twice is fine."""
    experiment = scene.experiment()
    trial = scene.run(experiment, losses=[0.5], checkpoint="c1", end="error")
    with RunLog.open(trial.records_path(1)) as records:  # killed while it saved another one
        records.commit({"t": "checkpoint_started", "uuid": "half"})
    scene.checkpoint("half.partial")
    other = scene.checkpoint("c2")
    events = scene.root / "checkpoints" / "tensorboard" / "experiment"
    (events / "1" / "trial" / "1").mkdir(parents=True)
    (events / "11" / "trial" / "9").mkdir(parents=True)
    scene.client.experiment(1).delete()
    assert {*(scene.root / "checkpoints").iterdir()} == {other, events.parent}
    assert [folder.name for folder in events.iterdir()] == ["11"]
    assert [entry.name for entry in experiment.path.iterdir()] == ["facts"]
    assert scene.client.rows(archived=True) == []
    scene.client.stored(1, deleted=True).delete()
    again = scene.experiment()
    assert again.id == 2
    assert again.created().first_trial == 2


def test_a_deletion_that_broke_off_can_be_repeated(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash half way the next attempt removes the rest, checkpoints included."""
    experiment = scene.experiment(2)
    for index in (0, 1):
        scene.run(experiment, index, losses=[0.5], checkpoint=f"c{index}", end="completed")
    from detslurm.storage import SharedFS

    discard = SharedFS.discard

    def breaks(self: SharedFS, uuid: str) -> None:
        if uuid == "c1":
            raise OSError("no")
        discard(self, uuid)

    monkeypatch.setattr(SharedFS, "discard", breaks)
    with pytest.raises(OSError, match="no"):
        scene.client.experiment(1).delete()
    monkeypatch.undo()
    scene.client.stored(1, deleted=True).delete()
    assert list((scene.root / "checkpoints").iterdir()) == []
    assert [entry.name for entry in experiment.path.iterdir()] == ["facts"]


def test_a_deletion_waits_for_trials_that_cant_be_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their checkpoints would stay, with nothing left that names them."""
    experiment = scene.experiment(1)
    scene.run(experiment, losses=[0.5], checkpoint="c", end="completed")
    experiment.append(Intent(intent="delete"))

    def fails(self: TrialDir, *args: object) -> None:
        raise StoreFault("Input/output error", errno.EIO, "run-1.jsonl")

    monkeypatch.setattr(TrialDir, "runs", fails)
    with pytest.raises(LifecycleError, match="can't be read, and its checkpoints"):
        scene.client.stored(1, deleted=True).delete()
    monkeypatch.undo()
    assert (scene.root / "checkpoints" / "c").exists()
    scene.client.stored(1, deleted=True).delete()
    assert list((scene.root / "checkpoints").iterdir()) == []


def test_an_active_experiment_is_not_deleted(scene: Scene) -> None:
    """It has to be killed first, and nothing is lost by asking."""
    experiment = scene.experiment(job="7")
    with pytest.raises(LifecycleError, match="kill it first"):
        scene.client.experiment(1).delete()
    assert experiment.code.exists()
    assert intents(experiment) == []


def test_what_has_ended_since_it_was_read_is_over(scene: Scene) -> None:
    """A script may hold an experiment for hours, and kill it before it deletes it."""
    ending = scene.experiment()
    held = scene.client.experiment(1)
    scene.run(ending, end="completed")
    held.archive()
    assert [row.id for row in scene.client.rows()] == []
    scene.experiment(job="8")
    killed = scene.client.experiment(2)
    killed.kill()
    killed.delete()
    assert [row.id for row in scene.client.rows(archived=True)] == [1]


def test_the_code_comes_back_as_it_was_frozen(scene: Scene, tmp_path: Path) -> None:
    """The archive holds the experiment's own copy."""
    import tarfile

    scene.experiment()
    path = scene.client.experiment(1).download_code(tmp_path / "out")
    assert path == tmp_path / "out" / "experiment_1_model_def.tgz"
    with tarfile.open(path) as archive:
        assert "./train.py" in archive.getnames()


def test_contiguous_ranges_have_no_gaps() -> None:
    """Every index is in exactly one range, whatever the order."""
    assert [list(r) for r in contiguous_ranges([5, 1, 2, 9, 3, 1])] == [[1, 2, 3], [5], [9]]
    assert contiguous_ranges([]) == []
