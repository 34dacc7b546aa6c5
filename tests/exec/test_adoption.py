"""Trials whose runners died, and the runners that go on with them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Action, Decision
from detslurm.exec.trial_queue import StaticTrialQueue
from detslurm.jobs.resubmit import submitted_fact, successor_request
from detslurm.sdk.experiments.polling import ExperimentPoller
from detslurm.slurm import JobRequest
from detslurm.store import ExperimentDir
from tests.sdk.scenes import YAML, Scene

RANDOM = YAML.replace("{name: grid, ", "{name: random, max_trials: 4, ")
DONE = Decision("completed", "the code exited with 0", Action.STOP)


@pytest.fixture
def experiment(scene: Scene) -> ExperimentDir:
    """An array of three: the runner of the first was killed, the second runs, the last is done."""
    experiment = scene.experiment(3)
    for index in range(3):
        scene.queue.put(f"7_{index}", "RUNNING")
        scene.run(experiment, index, ref=f"7_{index}", end="completed" if index == 2 else None)
    scene.queue.put("7_0", "FAILED", signal=9)
    return experiment


def queue_of(
    scene: Scene, experiment: ExperimentDir, index: int, each: int = 1
) -> StaticTrialQueue:
    """The trial queue of an element's runner."""
    intents = Intents(experiment)
    intents.refresh()
    return StaticTrialQueue(
        intents,
        experiment.run_config(),
        range(index * each, (index + 1) * each),
        ref=f"7_{index}",
        cluster=lambda name: scene.queue,
    )


def next_of(trial_queue: StaticTrialQueue) -> int | None:
    """The trial that the runner takes next."""
    task = trial_queue.take() if trial_queue.has_work() else None
    return None if task is None else task.index


def done(
    scene: Scene, experiment: ExperimentDir, trial_queue: StaticTrialQueue, index: int
) -> None:
    """The runner's own trial comes to its end."""
    task = trial_queue.take() if trial_queue.has_work() else None
    assert task is not None and task.index == index
    trial_queue.on_run_ending(task, DONE)
    trial = experiment.trial(experiment.created().first_trial + index)
    run = len(trial.runs())
    trial.write_end(run, {"outcome": "completed", "time": 1.0})
    trial_queue.release(task, DONE, None, going_on=False)  # type: ignore[arg-type]


def test_who_has_done_its_share_goes_on_with_a_dead_runners_trial(
    scene: Scene, experiment: ExperimentDir
) -> None:
    """Before its end record, so that nobody takes the experiment for ended; for all who look the
    trial is alive again; requeued in the middle the runner goes on with it; once."""
    assert scene.client.trial(1).state == "ERROR"
    seen = scene.client.experiment(1)
    trial_queue = queue_of(scene, experiment, 1)
    done(scene, experiment, trial_queue, 1)
    ExperimentPoller(seen).poll()
    assert not seen.view.finished, "who waits for the experiment would stop waiting"
    assert scene.client.experiment(1).state == "ACTIVE"
    assert scene.client.trial(1).job_status.job_ref.ref == "7_1"  # type: ignore[union-attr]
    assert trial_queue.remaining_trials() == range(1)
    assert next_of(queue_of(scene, experiment, 1)) == 0
    assert next_of(trial_queue) == 0
    scene.run(experiment, 0, ref="7_1", end="completed")
    assert (
        not trial_queue.has_work()
        and trial_queue.is_experiment_over()
        and trial_queue.remaining_trials() == range(1, 1)
    )
    assert scene.client.experiment(1).state == "COMPLETED"


def test_all_that_the_dead_runner_left_is_gone_on_with(scene: Scene) -> None:
    """A replacement of an invalid sample, and the trials that its job would have run after it."""
    experiment = scene.experiment(4, job=None, text=RANDOM)
    request = JobRequest(name="det", command=("true",), folder=experiment.jobs, count=2)
    experiment.append(submitted_fact("slurm", "7", 0, request, each=2))
    first = experiment.store.reserve_trials(experiment.id, 1)
    more = {"type": "trials", "first_trial": first, "trials": 1, "replaces": 0}
    experiment.append(more)
    scene.run(experiment, 0, ref="7_0", end="invalid_hp")
    scene.run(experiment, 4, ref="7_0")
    scene.run(experiment, 2, ref="7_1", end="completed")
    scene.run(experiment, 3, ref="7_1")
    scene.queue.put("7_0", "FAILED", signal=9)
    scene.queue.put("7_1", "RUNNING")
    trial_queue = queue_of(scene, experiment, 1, each=2)
    done(scene, experiment, trial_queue, 3)
    assert [job_ref.ref for job_ref in scene.client.experiment(1)._snapshot.job_refs.values()] == [
        "7_1"
    ] * 5
    assert trial_queue.remaining_trials() == range(2)
    done(scene, experiment, trial_queue, 4)
    assert next_of(trial_queue) == 1


def test_a_successor_takes_an_adopted_trial_along(scene: Scene, experiment: ExperimentDir) -> None:
    """Where requeueing is void: the runner that submitted it has nothing to do with it any more."""
    done(scene, experiment, queue_of(scene, experiment, 1), 1)
    request = successor_request(experiment.facts(), experiment, 0)
    experiment.append(submitted_fact("slurm", "8", 0, request))
    assert next_of(queue_of(scene, experiment, 1)) is None


def test_of_many_ends_few_ask_the_controller(scene: Scene) -> None:
    """While trials wait that end later; once the last has begun, each end asks."""
    experiment = scene.experiment(1000, text=RANDOM.replace("4", "1000"))
    for index in range(414, 420):
        scene.queue.put(f"7_{index}", "RUNNING")
        scene.run(experiment, index, ref=f"7_{index}")
    for index in range(414, 418):
        done(scene, experiment, queue_of(scene, experiment, index), index)
    assert scene.queue.queries == [["7"], ["7_417"]]
    scene.run(experiment, 999, ref="7_999")
    done(scene, experiment, queue_of(scene, experiment, 418), 418)
    assert scene.queue.queries[2:] == [["7"], ["7_419"]]


def test_the_last_trial_may_never_begin(scene: Scene) -> None:
    """It was cancelled while it waited: the others' ends ask, each."""
    experiment = scene.experiment(33, text=RANDOM.replace("4", "33"))
    for index in range(32):
        end = None if index in (1, 3) else "completed"
        scene.run(experiment, index, ref=f"7_{index}", end=end)
    for index, state in ((1, "RUNNING"), (3, "NODE_FAIL"), (32, "CANCELLED")):
        scene.queue.put(f"7_{index}", state)
    done(scene, experiment, queue_of(scene, experiment, 1), 1)
    assert scene.queue.queries


def test_of_jobs_with_several_trials_some_ask(scene: Scene) -> None:
    experiment = scene.experiment(256, text=RANDOM.replace("4", "256"))
    asking = [
        queue_of(scene, experiment, job, each=4)._looks_for_orphans(4 * job + 3)
        for job in range(64)
    ]
    assert sum(asking) == 32


@pytest.mark.parametrize(
    "state", ["RUNNING", "PENDING", "COMPLETING", "CANCELLED", "COMPLETED", None]
)
def test_without_evidence_of_a_death_nothing_is_taken_over(
    scene: Scene, experiment: ExperimentDir, state: str | None
) -> None:
    """What somebody canceled, or what nobody remembers, is left alone."""
    if state is None:
        del scene.queue.jobs["7_0"]
    else:
        scene.queue.put("7_0", state)
    trial_queue = queue_of(scene, experiment, 1)
    done(scene, experiment, trial_queue, 1)
    assert not trial_queue.has_work()


def test_a_silent_controller_is_no_evidence(scene: Scene, experiment: ExperimentDir) -> None:
    trial_queue = queue_of(scene, experiment, 1)
    scene.queue.down = True
    done(scene, experiment, trial_queue, 1)
    assert not trial_queue.has_work()


def test_what_kills_runner_after_runner_is_left_alone(
    scene: Scene, experiment: ExperimentDir
) -> None:
    """After max_restarts of them, as in a search."""
    for _ in range(6):
        scene.run(experiment, 0, ref="7_0")
    trial_queue = queue_of(scene, experiment, 1)
    done(scene, experiment, trial_queue, 1)
    assert not trial_queue.has_work()


def test_the_users_intent_goes_before(scene: Scene, experiment: ExperimentDir) -> None:
    """A paused experiment adopts nothing."""
    trial_queue = queue_of(scene, experiment, 1)
    experiment.append({"type": "intent", "intent": "pause"})
    trial_queue._intents.refresh()
    done(scene, experiment, trial_queue, 1)
    assert not trial_queue.has_work()


def at_pauses(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen at each pause between two queries, which takes no time."""
    monkeypatch.setattr(time, "sleep", lambda seconds: act())


class TestASecondJobOfATrial:
    """Its queue shows whether the first one is at it still; to begin would end that run."""

    @pytest.fixture
    def second(self, scene: Scene) -> StaticTrialQueue:
        """The trial queue of the second job, while the first one's run goes on."""
        experiment = scene.experiment(1, job="8")
        scene.queue.put("8", "RUNNING")
        scene.run(experiment, ref="8")
        scene.submitted(experiment, "7_0", 0, 1)
        return queue_of(scene, experiment, 0)

    def test_it_leaves_the_trial_to_a_job_that_runs(self, second: StaticTrialQueue) -> None:
        assert not second.has_work()

    def test_it_waits_for_a_controller_that_does_not_answer(
        self, scene: Scene, second: StaticTrialQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Silence says nothing about the first job."""
        scene.queue.down = True
        at_pauses(monkeypatch, lambda: setattr(scene.queue, "down", False))
        assert not second.has_work()
        scene.queue.down = True
        scene.queue.put("8", "NODE_FAIL")
        assert queue_of(scene, second._experiment, 0).has_work()

    @pytest.mark.parametrize("name", ["run-1.log", "run-1.jsonl", None])
    def test_it_goes_by_what_the_run_writes_where_none_comes(
        self,
        scene: Scene,
        second: StaticTrialQueue,
        monkeypatch: pytest.MonkeyPatch,
        name: str | None,
    ) -> None:
        """It takes over from a run that writes nothing for minutes."""
        trial = second._experiment.trial(1)

        def write() -> None:
            if name is not None:
                with (trial.path / name).open("a") as file:
                    file.write("more\n")

        scene.queue.down = True
        at_pauses(monkeypatch, write)
        assert second.has_work() == (name is None)

    def test_the_users_intent_ends_the_waiting(
        self, scene: Scene, second: StaticTrialQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The job then begins nothing."""
        pauses: list[int] = []

        def pause() -> None:
            pauses.append(1)
            scene.client.experiment(1).kill()

        scene.queue.down = True
        at_pauses(monkeypatch, pause)
        second.has_work()
        assert len(pauses) == 1
