"""A worker and its search, with a queue that says what the test wants."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec import structs

from detslurm._base.states import TERMINAL, RunOutcome
from detslurm.exec import worker_pool
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Action, Decision
from detslurm.exec.search_worker import SearchTrialQueue
from detslurm.searcher import State
from detslurm.slurm import ClusterLimits
from detslurm.store import EventLog, ExperimentDir, fold_facts, fold_trial
from detslurm.store.facts import FactLog
from detslurm.store.search_records import end_search
from tests.sdk.scenes import YAML, Scene

TRUNCATE = "{truncate_fraction: 0.5}"
COMPLETED = Decision("completed", "the code exited with 0", Action.STOP)
PREEMPTED = Decision("preempted", "preempted by Slurm", Action.REQUEUE)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers with a trial ask the queue each time."""
    monkeypatch.setattr(worker_pool, "_SOON", 0.0)


def worker_of(scene: Scene, experiment: ExperimentDir, ref: str) -> SearchTrialQueue:
    intents = Intents(experiment)
    intents.refresh()
    return SearchTrialQueue(intents, experiment.run_config(), ref=ref, cluster=scene.queue)


class Desk:
    """A search of six trials by three workers, seen from one of them."""

    def __init__(self, scene: Scene, ref: str = "7_0", **about: Any) -> None:
        self.scene = scene
        self.experiment: ExperimentDir
        self.log: EventLog[State]
        self.experiment, self.log = scene.search(**about)
        scene.queue.put(ref, "RUNNING")
        self.trial_queue = self.worker(ref)

    def worker(self, ref: str) -> SearchTrialQueue:
        return worker_of(self.scene, self.experiment, ref)

    def took(self, trial_queue: SearchTrialQueue | None = None) -> int | None:
        """The index of the next trial of a worker; None when it may leave."""
        trial_queue = trial_queue or self.trial_queue
        task = trial_queue.take() if trial_queue.has_work() else None
        return None if task is None else task.index

    def others(self, *refs: str, state: str = "RUNNING") -> None:
        """Let other workers take all that waits for them."""
        for ref in refs:
            self.scene.works(self.experiment, self.log, ref)
            self.scene.queue.put(ref, state)

    def state(self) -> State:
        return self.log.catch_up()

    def last_events(self) -> list[dict[str, Any]]:
        """The newest entry of the search's log."""
        *_, fact = FactLog(self.experiment.search).facts()
        return list(fact["events"])

    def finish(self, index: int) -> None:
        """Let a trial report its last length."""
        target = self.state().trials[index].target_length
        self.log.commit([{"e": "validated", "trial": index, "length": target, "metric": 1.0}])


@pytest.fixture
def desk(scene: Scene) -> Desk:
    return Desk(scene)


def test_a_worker_asks_again_for_what_a_former_process_of_it_got_late(desk: Desk) -> None:
    """The late request was committed after this process had read the log."""
    assert desk.trial_queue.has_work()
    desk.log.commit([desk.state().request_event("7_0", "former")])
    task = desk.trial_queue.take()
    assert task is not None
    trial = desk.state().trials[task.index]
    assert (trial.incarnation, trial.fencing_token) != ("former", 1)
    assert (task.fencing_token, trial.worker) == (trial.fencing_token, "7_0")


def test_a_worker_keeps_its_trial_over_a_restart(desk: Desk) -> None:
    """A requeued job goes on with what it had; another one gets another trial."""
    assert desk.took() == 0
    assert desk.took(desk.worker("7_0")) == 0
    assert desk.took(desk.worker("7_1")) == 1


def test_a_former_self_is_not_heard(desk: Desk) -> None:
    """What a job's runs before its requeue say of the trial comes too late, for good or bad."""
    former = desk.trial_queue.take()
    again = desk.worker("7_0").take()
    assert former is not None and again is not None
    assert (former.index, former.fencing_token, again.fencing_token) == (0, 1, 2)
    report = {
        "e": "validated",
        "trial": 0,
        "length": 3,
        "metric": 0.1,
        "fencing_token": former.fencing_token,
    }
    desk.log.commit([report])
    view = fold_trial(desk.experiment.trial(former.trial_id))
    desk.trial_queue.release(former, COMPLETED, view, going_on=False)
    trial = desk.state().trials[0]
    assert (trial.status, trial.reached) == ("assigned", 0)
    desk.log.commit([{**report, "fencing_token": again.fencing_token}])
    assert desk.state().trials[0].reached == 3


def test_what_outlived_its_run_is_not_heard(desk: Desk) -> None:
    """Another run in the same allocation has another token, too: an orphan's report is too late."""
    task = desk.trial_queue.take()
    assert task is not None
    again = desk.trial_queue.retake(task)
    assert again is not None and (task.fencing_token, again.fencing_token) == (1, 2)
    report = {"e": "validated", "trial": 0, "length": 3, "metric": 0.1}
    desk.log.commit([{**report, "fencing_token": task.fencing_token}])
    assert desk.state().trials[0].reached == 0
    desk.log.commit([{**report, "fencing_token": again.fencing_token}])
    assert desk.state().trials[0].reached == 3


def test_a_trial_given_back_is_first_in_the_queue(desk: Desk) -> None:
    """The next worker that asks gets the trial of one that was preempted."""
    task = desk.trial_queue.take()
    assert task is not None
    view = fold_trial(desk.experiment.trial(task.trial_id))
    desk.trial_queue.release(task, PREEMPTED, view, going_on=False)
    assert desk.took(desk.worker("7_1")) == 0


def test_leaving_and_asking_is_one_decision(desk: Desk) -> None:
    """A worker that goes on has its next trial by the very fact that tells of the one before."""
    task = desk.trial_queue.take()
    assert task is not None
    view = fold_trial(desk.experiment.trial(task.trial_id))
    desk.log.catch_up()
    before = desk.log.position
    desk.trial_queue.release(task, COMPLETED, view, going_on=True)
    assert desk.state().assignment("7_0") == 1
    assert desk.log.position == before + 1
    assert desk.took() == 1
    desk.log.catch_up()
    assert desk.log.position == before + 1


@pytest.mark.parametrize(
    ("outcome", "how"), [("completed", "completed"), ("error", "error"), ("killed", "canceled")]
)
def test_an_end_record_that_the_search_never_saw(desk: Desk, outcome: str, how: str) -> None:
    """A runner that died between a trial's end record and the search's is finished by the next."""
    assert desk.took() == 0
    desk.scene.run(desk.experiment, 0, ref="7_0", end=outcome)
    assert desk.took(desk.worker("7_0")) == 1
    assert desk.state().trials[0].outcome == how


@pytest.mark.parametrize("outcome", get_args(RunOutcome))
def test_the_search_takes_the_words_of_end_records(desk: Desk, outcome: RunOutcome) -> None:
    """A run ends in the search's log as in its end record, and the trial as that says."""
    task = desk.trial_queue.take()
    assert task is not None
    view = fold_trial(desk.experiment.trial(task.trial_id))
    decision = Decision(outcome, "", Action.STOP)
    desk.trial_queue.release(task, decision, view, going_on=False)
    assert [event["outcome"] for event in desk.last_events()] == [outcome]
    closed = TERMINAL.keys() | {"out_of_ops", "stopped", "non_retryable"}
    assert desk.state().trials[0].status == ("closed" if outcome in closed else "waiting")


def test_a_length_that_was_reported_is_not_trained_again(desk: Desk) -> None:
    """A runner that died after its trial's report leaves nothing to run for its successor."""
    assert desk.took() == 0
    desk.finish(0)
    assert desk.took(desk.worker("7_0")) != 0
    assert desk.state().trials[0].status == "paused"


@pytest.mark.parametrize("how", ["requeued", "dead", "activated"])
def test_copies_start_from_what_a_lost_worker_has_saved(scene: Scene, how: str) -> None:
    """Whoever tells for it that its trial left, names the checkpoint that it can't name."""
    pbt = "{name: pbt, metric: loss, population_size: 2, num_rounds: 3, length_per_round: 3"
    grid = "{name: grid, metric: loss, max_length: 10"
    desk = Desk(scene, text=YAML.replace(grid, f"{pbt}, replace_function: {TRUNCATE}"), workers=1)
    assert desk.took() == 0
    desk.finish(0)
    scene.run(desk.experiment, 0, ref="7_0", checkpoint="saved")
    if how == "requeued":
        assert desk.took(desk.worker("7_0")) == 1
    else:
        scene.queue.put("7_0", "FAILED")
        if how == "activated":
            scene.client.experiment(desk.experiment.id).activate()
        scene.queue.put("8", "RUNNING")
        assert desk.took(desk.worker("8")) == 1
        if how == "dead":
            assert desk.took(desk.worker("9")) is None
    assert desk.state().trials[0].checkpoint == "saved"


def test_copies_of_a_search_that_goes_on_count_from_their_originals(scene: Scene) -> None:
    """The checkpoint is one of the experiment before, and so are its steps."""
    text = YAML.replace(
        "name: grid, metric: loss, max_length: 10",
        "name: pbt, metric: loss, population_size: 2, num_rounds: 1,"
        f" length_per_round: {{batches: 2}}, replace_function: {TRUNCATE}",
    )
    experiment, log = scene.search(text=text, workers=2, trials=2)
    for index, worker in enumerate(("7_0", "7_1")):
        loss, uuid = float(index), f"c{index}"
        scene.works(experiment, log, worker, losses=[9, loss], checkpoint=uuid, end="completed")
        log.commit([
            {"e": "validated", "trial": index, "length": 2, "metric": loss},
            {"e": "run_ended", "trial": index, "worker": worker, "outcome": "out_of_ops",
             "checkpoint": uuid},
        ])  # fmt: skip
    end_search(experiment, ["completed", "completed"], "completed")
    scene.queue.jobs.clear()
    done = scene.client.experiment(experiment.id).continue_(["searcher.num_rounds=2"])
    made = scene.store.experiment(done.id)
    worker_of(scene, made, "8_0").take()
    copy = worker_of(scene, made, "8_1").take()
    assert copy is not None and (copy.index, copy.source, copy.source_steps) == (2, "c0", 2)


def test_an_idle_worker_frees_trials_of_the_dead_only(desk: Desk) -> None:
    """Dead on evidence: lost; waiting in the queue: given back; running or unknown: left alone."""
    desk.others("7_1", "7_2", "8")
    desk.scene.queue.put("7_1", "FAILED")
    desk.scene.queue.put("7_2", "PENDING", "BeginTime")
    assert desk.took() == 0
    state = desk.state()
    assert (state.trials[0].lost, state.trials[1].lost) == (1, 0)
    assert state.workers == {"8": 2, "7_0": 0}
    assert state.waiting() == [1]


def test_one_look_at_the_queue_before_leaving(desk: Desk) -> None:
    """A worker with nothing to do asks once and ends."""
    desk.others("7_1", "7_2", "8")
    assert desk.took() is None
    assert len(desk.scene.queue.queries) == 1


@pytest.mark.usefixtures("busy")
def test_workers_are_added_where_trials_wait(desk: Desk) -> None:
    """As many as lack, once; not while others come already, never more than may run."""
    assert desk.took() == 0
    queue = desk.scene.queue
    for ref in ("7_1", "7_2"):
        queue.put(ref, "COMPLETED")
    assert desk.took() == 0
    arrays = [request for request in queue.requests if request.dependency is None]
    assert [request.count for request in arrays] == [2]
    assert desk.took() == 0
    assert len([r for r in queue.requests if r.dependency is None]) == 1, "they are coming"


@pytest.mark.usefixtures("busy")
def test_workers_are_added_by_arrays_that_the_site_accepts(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing then comes with the next look."""
    monkeypatch.setattr(worker_pool, "_LATER", 0.0)
    queue = desk.scene.queue
    monkeypatch.setattr(queue, "limits", lambda: ClusterLimits(max_array_size=2))
    assert desk.took() == 0
    for ref in ("7_1", "7_2"):
        queue.put(ref, "COMPLETED")
    assert desk.took() == 0
    assert [r.count for r in queue.requests if not r.dependency] == [None]
    [standby] = [number for number, r in enumerate(queue.requests, 101) if r.dependency]
    queue.put(str(standby), "PENDING", "Dependency")
    assert desk.took() == 0
    assert [r.count for r in queue.requests if not r.dependency] == [None, None]


@pytest.mark.usefixtures("busy")
def test_workers_are_added_within_max_slots(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the user set it last, up to what the search can use."""
    monkeypatch.setattr(worker_pool, "_LATER", 0.0)
    queue, experiment = desk.scene.queue, desk.scene.client.stored(desk.experiment.id)
    experiment.set_max_slots(1)
    assert desk.took() == 0
    for ref in ("7_1", "7_2"):
        queue.put(ref, "COMPLETED")
    assert desk.took() == 0
    assert not [r for r in queue.requests if not r.dependency]
    queue.put("101", "PENDING", "Dependency")  # the standby worker
    experiment.set_max_slots(9)
    assert desk.took() == 0
    assert [r.count for r in queue.requests if not r.dependency] == [2]


@pytest.mark.usefixtures("busy")
def test_workers_that_are_promised_are_waited_for(desk: Desk) -> None:
    """Of several that see the lack at once one submits; where it died on it, another does later."""
    assert desk.took() == 0
    for ref in ("7_1", "7_2"):
        desk.scene.queue.put(ref, "COMPLETED")
    desk.experiment.append({"type": "adding_workers", "count": 2, "job": "8"})
    assert desk.took() == 0
    assert not [r for r in desk.scene.queue.requests if not r.dependency]
    desk.scene.queue.put("101", "PENDING", "Dependency")  # the standby worker
    desk.experiment.append({"type": "resubmitting", "parts": [[0, 2, 1]]})
    assert desk.took() == 0
    assert not [r for r in desk.scene.queue.requests if not r.dependency], "a command's promise"
    assert desk.took() == 0
    assert [r.count for r in desk.scene.queue.requests if not r.dependency] == [2]


@pytest.mark.usefixtures("busy")
def test_workers_about_to_be_free_are_counted_on(desk: Desk) -> None:
    """A trial that was created by a report waits for the worker that reported."""
    desk.others("7_1", "7_2")
    assert desk.took() == 2
    desk.finish(0)
    desk.finish(1)
    assert desk.state().waiting() and len(desk.state().workers) == 3
    desk.scene.queue.put("7_1", "COMPLETED")
    assert desk.took() == 2
    assert not [r for r in desk.scene.queue.requests if not r.dependency]


@pytest.mark.usefixtures("busy")
def test_where_jobs_must_not_submit_jobs_none_does(scene: Scene) -> None:
    """However many trials wait."""
    desk = Desk(scene)
    facts = desk.trial_queue._intents.facts
    facts.created = structs.replace(facts.created, submit_from_jobs=False)
    for ref in ("7_1", "7_2"):
        scene.queue.put(ref, "COMPLETED")
    assert [desk.took() for _ in range(3)] == [0, 0, 0]
    assert not scene.queue.requests


def test_the_end_is_said_once_and_empties_the_queue(desk: Desk) -> None:
    """Whoever sees that the search is over says so; waiting workers leave the queue."""
    while (index := desk.took()) is not None:
        desk.finish(index)
    assert desk.state().done
    assert not desk.trial_queue.has_work()
    facts = fold_facts(desk.experiment)
    assert facts.closed is not None and len(facts.closed) == 6
    assert desk.scene.queue.jobs["7_2"].state == "CANCELLED"
    count = facts.count
    assert not desk.worker("7_1").has_work()
    assert not desk.trial_queue.is_experiment_over()
    assert fold_facts(desk.experiment).count == count


def test_the_end_takes_no_other_jobs_out_of_the_queue(desk: Desk) -> None:
    """One with an id of ours that works elsewhere, or that the queue does not show by that id."""
    queue = desk.scene.queue
    while (index := desk.took()) is not None:
        desk.finish(index)
    for job in ("8", "9"):
        desk.scene.submitted(desk.experiment, job, 0, 1)
    queue.put("8", "PENDING", "Priority", folder="/home/ada/elsewhere")
    del queue.jobs["9"]
    queue.calls.clear()
    assert not desk.trial_queue.has_work()
    assert queue.calls == [("cancel", "7")] and queue.jobs["7_2"].state == "CANCELLED"


def test_ids_beyond_those_foreseen_are_added(scene: Scene) -> None:
    """A search that creates more trials than it has ids for gets another block."""
    desk = Desk(scene, trials=1)
    assert desk.took() == 0
    assert desk.took(desk.worker("7_1")) == 1
    assert desk.took(desk.worker("7_2")) == 2
    facts = fold_facts(desk.experiment)
    assert len(facts.trial_ids) == len(set(facts.trial_ids)) == 17
