"""One trial in the hands of a job, without a cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from detslurm.exec.end_reasons import EndReasons
from detslurm.exec.execution import Execution
from detslurm.exec.intents import Intents
from detslurm.exec.outcome import Action, AttemptResult, Cause
from detslurm.exec.run_claim import JobContext
from detslurm.exec.signals import SignalInbox
from detslurm.exec.steps import Steps
from detslurm.exec.text_log import print_message
from detslurm.exec.trial_queue import StaticTrialQueue
from detslurm.slurm import Allocation
from detslurm.store import TrialDir, fold_facts
from detslurm.store.checkpoint_facts import mark_deleted
from detslurm.store.records import Lost
from detslurm.store.run_records import ResumeRecord, StartRecord
from tests.sdk.scenes import Scene
from tests.store import collecting, scenes


def job_of(scene: Scene, inbox: SignalInbox, said: str | None = None, **about: Any) -> JobContext:
    """A job whose GPUs were dealt unequally, so that no step can use them; Slurm `said` a line."""
    experiment = scene.experiment(about=about)
    intents = Intents(experiment)
    intents.refresh()
    allocation = Allocation(
        cluster="slurm", job_id="7", nodes=("n1", "n2"), slot_ids=("0", "1", "2"), gpus_of_job=4
    )
    config = experiment.run_config()
    steps = Steps(allocation, config, experiment.path)
    return JobContext(intents, config, allocation, lambda: scene.queue, inbox, lambda: said, steps)


def refused(scene: Scene, inbox: SignalInbox, **about: Any) -> Execution:
    """The first trial in such a job."""
    job = job_of(scene, inbox, **about)
    trial_queue = StaticTrialQueue(
        job.intents, job.config, range(1), ref="7", cluster=lambda name: scene.queue
    )
    assert trial_queue.has_work()
    task = trial_queue.take()
    assert task is not None
    return Execution(task, trial_queue, job)


def reasons_of(job: JobContext) -> EndReasons:
    return EndReasons(job, job.intents.experiment.trial(1))


@pytest.fixture
def listening() -> Iterator[SignalInbox]:
    """One for SIGTERM."""
    handler, wakeup = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    yield SignalInbox([signal.SIGTERM])
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(
    ("state", "said", "cause", "yield_allocation"),
    [
        ("RUNNING", None, Cause.PREEMPTION, True),
        ("COMPLETING", "cancelled", Cause.KILL, False),
        ("COMPLETING", "time_limit", Cause.TIME_LIMIT, True),
        ("COMPLETING", None, Cause.ENDING, False),
    ],
)
def test_a_step_that_ended_before_its_runner_heard_why(
    scene: Scene,
    listening: SignalInbox,
    state: str,
    said: str | None,
    cause: Cause,
    yield_allocation: bool,
) -> None:
    """Agents take every end of a job for a preemption: the queue tells one from the other."""
    reasons = reasons_of(job_of(scene, listening, said))
    scene.queue.put("7", state)
    if state == "COMPLETING":
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    result = AttemptResult(
        cause=Cause.PREEMPTION, began=True, acknowledged=True, yield_allocation=True
    )
    reasons.confirm(result)
    assert (result.cause, result.yield_allocation) == (cause, yield_allocation)
    assert result.job_is_ending == (state == "COMPLETING")


@pytest.mark.parametrize(
    ("state", "said", "cause"),
    [
        ("RUNNING", "cancelled", None),
        ("COMPLETING", "cancelled", Cause.KILL),
        (None, "cancelled", Cause.KILL),  # the queue does not know it
        ("RUNNING", "time_limit", Cause.TIME_LIMIT),
        ("RUNNING", None, Cause.ENDING),
    ],
)
def test_a_sigterm_by_hand_is_no_cancel(
    scene: Scene, inbox: SignalInbox, state: str | None, said: str | None, cause: Cause | None
) -> None:
    """slurmstepd prints the same line for both; a cancelled job does not run any more."""
    reasons = reasons_of(job_of(scene, inbox, said))
    if state is not None:
        scene.queue.put("7", state)
    assert reasons.sigterm_cause() is cause


@pytest.mark.parametrize(
    ("state", "nodes", "cause", "exit_code"),
    [
        ("PENDING", (), Cause.PREEMPTION, 137),
        ("RUNNING", ("n2", "n3"), Cause.PREEMPTION, 137),
        ("RUNNING", ("n1", "n2"), None, 1),
    ],
)
def test_an_agent_that_went_with_its_node(
    scene: Scene,
    listening: SignalInbox,
    state: str,
    nodes: tuple[str, ...],
    cause: Cause | None,
    exit_code: int,
) -> None:
    """Where the job is being ended, that is no failure of the code; else it may be one."""
    reasons = reasons_of(job_of(scene, listening, "node_failed"))
    scene.queue.put("7", state, nodes=nodes)
    slurm = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    if cause is not None:
        slurm.start()
    result = AttemptResult(began=True, agent_lost=True, exit_code=1)
    reasons.confirm(result)
    slurm.cancel()
    assert (result.cause, result.exit_code) == (cause, exit_code)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([scenes.metrics(9)], ("time_limit", Action.REQUEUE)),
        ([], ("time_limit", Action.REQUEUE)),
        ([scenes.metrics(1), scenes.metrics(8)], ("restart", Action.REQUEUE)),
        ([scenes.metrics(8), scenes.checkpoint("c", 8)], ("time_limit", Action.REQUEUE)),
    ],
)
@pytest.mark.parametrize("resume", [None, {"uuid": "another trial's", "steps": 100}])
def test_code_that_leaves_at_the_time_limit_with_nothing_won(
    scene: Scene,
    inbox: SignalInbox,
    records: list[dict[str, Any]],
    expected: tuple[str, Action],
    resume: dict[str, Any] | None,
) -> None:
    """It would be started again without end, also where it ignores the checkpoint that it is to
    continue; what goes on from files of its own comes further."""
    execution = refused(scene, inbox)
    scenes.run(execution._trial, [scenes.metrics(8)], "time_limit", resume)
    before = execution._fold()
    scenes.run(execution._trial, records, resume=resume)
    left = AttemptResult(cause=Cause.TIME_LIMIT, began=True, acknowledged=True)
    decision, _ = execution._decide(before, left)
    assert (decision.outcome, decision.action) == expected


@pytest.mark.parametrize(
    ("left", "cause"),
    [(3600, Cause.PREEMPTION), (60, Cause.TIME_LIMIT), (None, Cause.TIME_LIMIT)],
)
def test_why_sigusr1_came_where_the_controller_is_silent(
    scene: Scene, inbox: SignalInbox, left: int | None, cause: Cause
) -> None:
    """Far from the limit that the job began with it is a preemption."""
    job = job_of(scene, inbox)
    end_time = None if left is None else time.time() + left
    job = job._replace(allocation=job.allocation._replace(end_time=end_time))
    scene.queue.down = True
    assert reasons_of(job).signal_cause() is cause


def test_a_warm_start_begins_with_what_was_chosen_at_the_submission(
    scene: Scene, inbox: SignalInbox
) -> None:
    """Whatever the source has saved since: all trials begin alike, and this one is protected."""
    refused(scene, inbox, source_checkpoint="kept").run()
    (run,) = scene.store.find_trial(1).runs()
    assert run.start.resume == ResumeRecord("kept", 0)


def test_gpus_that_were_dealt_unequally(scene: Scene, inbox: SignalInbox) -> None:
    """No step can use them: the trial says so and is over, instead of its runner."""
    decision, _ = refused(scene, inbox).run()
    assert (decision.outcome, decision.action) == ("error", Action.STOP)
    assert "3 of 4 GPUs" in decision.reason
    trial = scene.client.trial(1)
    assert trial.state == "ERROR" and "3 of 4 GPUs" in str(trial.row.end_reason)
    assert "slurm.slots_per_node" in trial.directory.log_path(1).read_text()


def test_the_log_is_whole_before_the_end_record(
    scene: Scene, inbox: SignalInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that follows the log reads it once more after the end record, then stops."""
    followed = []
    write_end = TrialDir.write_end

    def written(self: TrialDir, run: int, record: Mapping[str, Any]) -> bool:
        followed.append(self.log_path(run).read_text())
        return write_end(self, run, record)

    monkeypatch.setattr(TrialDir, "write_end", written)
    refused(scene, inbox).run()
    (text,) = followed
    assert text == scene.client.trial(1).directory.log_path(1).read_text()
    assert "run 1 ended: failed" in text.splitlines()[-1]


def test_output_that_is_full_ends_nothing() -> None:
    """What can't be said is not said; nothing is left that would fail at the end."""
    output, full = os.dup(1), os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    try:
        print_message("too much")
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(full)


def test_a_run_whose_checkpoint_was_deleted_as_it_began_begins_again(
    scene: Scene, inbox: SignalInbox
) -> None:
    """With what the collector has left: it knew a newer checkpoint, or it was somebody's wish."""
    execution = refused(scene, inbox)
    made = scene.store.experiment(1)
    collecting.run(scene, made, 0, [("a", 1, None), ("b", 2, None)], end="preempted")
    trial = execution._trial
    claim = trial.open_run

    def open_run(record: Mapping[str, Any], after: int | None = None) -> StartRecord:
        start = claim(record, after)
        if start.run == 2:  # between our reading and our claim, on another node
            mark_deleted(made, ["b"])
        return start

    trial.open_run = open_run  # type: ignore[method-assign]
    start = execution._start(execution.view())
    assert (start.run, start.resumed.uuid) == (3, "a")
    assert [run.end and run.end.outcome for run in trial.runs()] == ["preempted", "lost", None]


def test_a_lost_trial_is_found_before_a_run_of_it_is_claimed(
    scene: Scene, inbox: SignalInbox
) -> None:
    """As after a requeue by hand: what a lost trial claims may be deleted."""
    execution = refused(scene, inbox)
    made, trial = scene.store.experiment(1), execution._trial
    made.append(Lost(trials=(trial.id,)))
    claim, lost = trial.open_run, list[set[int]]()

    def open_run(record: Mapping[str, Any], after: int | None = None) -> StartRecord:
        lost.append(set(fold_facts(made).lost))
        return claim(record, after)

    trial.open_run = open_run  # type: ignore[method-assign]
    execution._start(execution.view())
    assert lost == [set()]


def test_a_node_that_is_not_reached_is_waited_for(
    scene: Scene, inbox: SignalInbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its death may become known later; where it never does, a restart is used, elsewhere."""
    execution = refused(scene, inbox)
    dead = {"exit_code": 233, "began": True, "controller_silent": True, "unlaunched": ["n2"]}
    results = [AttemptResult(**dead), AttemptResult(began=True)]  # type: ignore[arg-type]
    monkeypatch.setattr(execution, "_attempt", lambda log: results.pop(0))
    monkeypatch.setattr(inbox, "wait", lambda seconds: None)
    assert execution.run()[0].outcome == "completed" and results == []
    log = scene.client.trial(1).directory.log_path(1).read_text()
    assert "n2 does not answer, so that the step can't begin: trying again" in log

    monkeypatch.setattr("detslurm.exec.execution._CONTROLLER_TIMEOUT", -1.0)
    other = refused(scene, inbox)
    scene.queue.put("7", "RUNNING")
    results = [AttemptResult(**dead)]  # type: ignore[arg-type]
    monkeypatch.setattr(other, "_attempt", lambda log: results.pop(0))
    decision, _ = other.run()
    assert (decision.outcome, decision.action) == ("restart", Action.REQUEUE)
    assert decision.reason.startswith("the step could not begin: n2 did not answer; restart 1 of")


@pytest.mark.parametrize(
    ("left", "expected"),
    [(-20.0, ("time_limit", Action.REQUEUE)), (30.0, ("ended", Action.STOP))],
)
def test_a_line_of_slurm_that_is_missing_at_the_time_limit(
    scene: Scene,
    inbox: SignalInbox,
    monkeypatch: pytest.MonkeyPatch,
    left: float,
    expected: tuple[str, Action],
) -> None:
    """Other elements have overwritten it: the chain goes on. Before the limit nobody knows why."""
    monkeypatch.setattr(Allocation, "seconds_left", lambda self: left)
    execution = refused(scene, inbox)
    ended = AttemptResult(began=True, cause=Cause.ENDING, acknowledged=True, job_is_ending=True)
    monkeypatch.setattr(execution, "_attempt", lambda log: ended)
    decision, result = execution.run()
    assert (decision.outcome, decision.action) == expected
    assert result.yield_allocation is (expected[1] is Action.REQUEUE)
