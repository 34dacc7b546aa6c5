"""A custom search's workers: queued where trials wait, and no more of them than that."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.searches.worker_pool import WorkerPool
from detslurm.searcher import Search, State
from detslurm.slurm import JobInfo
from detslurm.store import EventLog, ExperimentDir

from .scenes import CUSTOM, Scene


class Staff:
    """A worker pool with a clock of its own, over a scene's queue."""

    def __init__(self, scene: Scene) -> None:
        self.experiment: ExperimentDir
        self.log: EventLog[State]
        self.experiment, self.log = scene.search(CUSTOM, workers=1)
        self.now = 0.0
        queues = Queues(lambda name: scene.queue, scene.warnings.append)
        self.pool = WorkerPool(self.experiment, queues, clock=lambda: self.now)
        self.queue = scene.queue
        self.queue.put("7", "COMPLETED")  # came before there was any work

    def create(self, *numbers: int) -> None:
        """Let the method create trials and ask each for five units."""
        dialogue = self.log.catch_up().dialogue
        assert dialogue is not None
        ops: list[dict[str, object]] = []
        for number in numbers:
            request = f"00000000-0000-4000-8000-{number:012}"
            ops.append({"op": "create", "request_id": request, "hparams": {}})
            ops.append({"op": "validate_after", "request_id": request, "length": 5})
        self.log.commit([{"e": "operations", "after": dialogue.last, "ops": ops}])

    def poll(self, later: float = 60.0) -> list[int | None]:
        """Let time pass and look; the sizes of all arrays that were queued so far."""
        self.now += later
        self.pool.replenish(self.log)
        return [request.count for request in self.queue.requests]


@pytest.fixture
def staff(scene: Scene) -> Staff:
    return Staff(scene)


def test_as_many_as_trials_wait(staff: Staff) -> None:
    """One array for all; the second look finds them in the queue and adds none."""
    staff.create(1, 2, 3)
    assert staff.poll() == [3]
    assert staff.poll() == [3]
    staff.create(4)
    assert staff.poll() == [3, None]


def test_no_more_than_the_slots_allow(scene: Scene, staff: Staff) -> None:
    """max_slots bounds all workers together, whatever array they came with, as it was set last."""
    scene.client.stored(staff.experiment.id).set_max_slots(2)
    staff.create(1, 2, 3, 4)
    assert staff.poll() == [2]
    assert staff.poll() == [2]
    scene.client.stored(staff.experiment.id).set_max_slots(3)
    assert staff.poll() == [2, None]


def test_a_trial_whose_worker_died_gets_another(staff: Staff) -> None:
    """The job is gone by the queue's own word: its trial waits again, and a worker is added."""
    staff.create(1)
    assert staff.poll() == [None]
    staff.log.commit([{"e": "work_requested", "worker": "101"}])
    staff.queue.put("101", "RUNNING")
    assert staff.poll() == [None]
    staff.queue.put("101", "NODE_FAIL")
    assert staff.poll() == [None, None]
    assert staff.log.state.trials[0].status == "waiting"
    assert staff.log.state.trials[0].lost == 1


def take_trial(staff: Staff, worker: str) -> None:
    """A worker on another node takes the next trial, unseen by the pool's own log."""
    other = EventLog(staff.experiment.search, Search(staff.experiment.config()))
    other.catch_up()
    other.commit([{"e": "work_requested", "worker": worker}])


def test_a_worker_that_starts_while_the_queue_answers_keeps_its_trial(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is older than what it has taken: neither that trial nor another one is lost."""
    staff.create(1)
    assert staff.poll() == [None]
    answer = staff.queue.query

    def query(job_ids: Collection[str]) -> dict[str, JobInfo]:
        found = answer(job_ids)
        take_trial(staff, "101")
        return found

    monkeypatch.setattr(staff.queue, "query", query)
    assert staff.poll() == [None]
    assert staff.log.state.workers == {"101": 0}


def test_a_worker_that_takes_a_trial_and_dies_in_one_answer_is_asked_for_again(
    staff: Staff, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known of it before tells nothing of the trial that it has by then."""
    staff.create(1)
    assert staff.poll() == [None]
    answer = staff.queue.query

    def query(job_ids: Collection[str]) -> dict[str, JobInfo]:
        monkeypatch.undo()
        take_trial(staff, "101")
        staff.queue.put("101", "NODE_FAIL")
        return answer(job_ids)

    monkeypatch.setattr(staff.queue, "query", query)
    staff.poll()
    assert staff.log.state.workers == {"101": 0}
    staff.poll()
    assert "101" not in staff.log.state.workers
    assert staff.log.state.trials[0].lost == 1


def test_the_controller_is_asked_rarely(staff: Staff) -> None:
    """Every ten seconds while trials wait, once a minute otherwise, never with nothing to do."""
    staff.poll()
    assert staff.queue.queries == []
    staff.create(1)
    for _ in range(20):
        staff.poll(later=1.0)
    assert len(staff.queue.queries) == 2
    staff.log.commit([{"e": "work_requested", "worker": "101"}])
    for _ in range(50):
        staff.poll(later=1.0)
    assert len(staff.queue.queries) == 2


@pytest.mark.parametrize("intent", ["pause", "cancel"])
def test_what_the_user_stopped_gets_no_workers(staff: Staff, intent: str) -> None:
    """Nothing is queued for an experiment that is paused or canceled."""
    staff.create(1)
    staff.experiment.append({"type": "intent", "intent": intent})
    assert staff.poll() == []


def test_a_queue_that_is_silent_or_refuses_is_asked_again(staff: Staff) -> None:
    """The runner goes on; nothing is queued twice for not having been seen."""
    staff.create(1)
    staff.queue.down = True
    assert staff.poll() == []
    staff.queue.down = False
    assert staff.poll() == [None]


def test_the_end_cancels_its_own_workers_alone(scene: Scene, staff: Staff) -> None:
    """Others wait under the same ids where a store was copied; a silent queue tells of none."""
    for job in ("8", "9"):
        scene.submitted(staff.experiment, job, 0, 1)
    staff.queue.put("8", "PENDING", "Priority", folder="/home/ada/elsewhere")
    staff.pool.end(staff.log.catch_up())
    assert staff.queue.calls == [("cancel", "7", "9")]
    assert [staff.queue.jobs[job].state for job in ("8", "9")] == ["PENDING", "CANCELLED"]
    staff.queue.down = True
    staff.pool.end(staff.log.state)
    [warning] = scene.warnings
    assert warning.startswith("slurm: can't cancel workers that wait now")
