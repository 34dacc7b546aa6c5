"""States are the store's fold and one look at the queue; only evidence declares a trial dead."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import Any

import pytest

from detslurm.sdk.experiments import listing
from detslurm.sdk.experiments import snapshot as snapshot_module
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.store import ExperimentDir, NotFound, RunLog, compact, fold_facts
from tests.sdk.scenes import Scene


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The experiments that lists have read."""
    read: list[int] = []
    real = snapshot_module.read

    def reading(directory: ExperimentDir, **options: Any) -> ExperimentSnapshot:
        read.append(directory.id)
        return real(directory)

    monkeypatch.setattr(listing, "read", reading)
    return read


def test_finished_experiments_need_no_queue(scene: Scene) -> None:
    """Nothing is asked of Slurm when everything is over."""
    for _ in range(3):
        scene.run(scene.experiment(), losses=[0.5], end="completed")
    assert [row.state for row in scene.client.rows()] == ["COMPLETED"] * 3
    assert scene.client.experiment(1).state == "COMPLETED"
    assert scene.queue.queries == []


def test_listing_reads_a_finished_experiment_once(scene: Scene, reads: list[int]) -> None:
    """From then on the index answers, until something is added to the experiment."""
    for _ in range(2):
        scene.run(scene.experiment(), losses=[0.5], end="completed")
    second = scene.client.experiment(2)
    first = scene.client.rows()
    assert scene.client.rows() == first
    assert reads == [1, 2]
    second.set_name("new")
    assert [row.name for row in scene.client.rows()] == ["test", "new"]
    assert reads == [1, 2, 2]


def test_a_page_reads_no_older_experiments(scene: Scene, reads: list[int]) -> None:
    """Nor does it ask the queue for them; the rows after the page come with all others at once."""
    for _ in range(4):
        scene.run(scene.experiment())
    rows = scene.client.newest_rows(count=2)
    assert [row.id for row in islice(rows, 2)] == [4, 3]
    assert (reads, len(scene.queue.queries)) == ([4, 3], 1)
    assert [row.id for row in rows] == [2, 1]
    assert (sorted(reads), len(scene.queue.queries)) == ([1, 2, 3, 4], 2)


def test_a_first_listing_that_is_broken_off_goes_on(
    scene: Scene, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has read of finished experiments is in the index."""
    for _ in range(5):
        scene.run(scene.experiment(), losses=[0.5], end="completed")

    def reading(directory: ExperimentDir, **options: Any) -> ExperimentSnapshot:
        reads.append(directory.id)
        if reads == [1, 2, 3, 4]:
            raise KeyboardInterrupt
        return snapshot_module.read(directory)

    monkeypatch.setattr(listing, "read", reading)
    monkeypatch.setattr(listing, "_GROUP", 2)
    shown: list[tuple[int, int]] = []
    mine = scene.client
    mine.progress = lambda what: nullcontext(lambda *how: shown.append(how))
    with pytest.raises(KeyboardInterrupt):
        mine.rows()
    assert shown == [(0, 5), (2, 5)]
    assert [row.id for row in scene.client.rows()] == [1, 2, 3, 4, 5]
    assert reads == [1, 2, 3, 4, 3, 4, 5]


def test_one_query_covers_all_unfinished_experiments(scene: Scene) -> None:
    """A list of many open experiments costs a single look at the queue."""
    for job in ("11", "12", "13"):
        scene.experiment(2, job=job)
    scene.run(scene.experiment(job="14"), end="completed")
    states = [row.state for row in scene.client.rows()]
    assert states == ["ACTIVE", "ACTIVE", "ACTIVE", "COMPLETED"]
    assert scene.queue.queries == [["11", "12", "13"]]


def test_a_waiting_trial_says_why(scene: Scene) -> None:
    """The queue's reason is shown with the trial."""
    scene.experiment(job="7")
    scene.queue.put("7", "PENDING", "Resources")
    trial = scene.client.trial(1)
    assert trial.state == "QUEUED"
    assert trial.job_status is not None
    assert trial.job_status.message == "job 7 waits in the queue: nodes are busy (Resources)"


@pytest.mark.parametrize("reason", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_job_that_no_node_could_start_is_named(scene: Scene, reason: str) -> None:
    """Slurm holds it after five attempts; `activate` releases it."""
    scene.experiment(job="7")
    scene.queue.put("7", "PENDING", reason)
    trial = scene.client.trial(1)
    assert trial.job_status is not None and trial.job_status.job is not None
    assert trial.job_status.job.held
    assert "nodes could not start it" in str(trial.job_status.message)
    scene.client.experiment(1).activate()
    assert ("release", "7") in scene.queue.calls


def test_the_progress_of_what_was_killed(scene: Scene) -> None:
    """It is how far it came, not all of the way."""
    experiment = scene.experiment(2, job="7")
    scene.run(experiment, 0, ref="7_0", end="completed")
    trial = scene.run(experiment, 1, ref="7_1")
    with RunLog.open(trial.records_path(1)) as records:
        records.append({"t": "progress", "value": 0.5})
    trial.write_end(1, {"outcome": "killed", "time": 1.0})
    assert scene.client.experiment(1).view.progress == 1.0  # the rest has completed
    experiment.append({"type": "intent", "intent": "kill"})
    assert scene.client.experiment(1).view.progress == 0.75


@pytest.mark.parametrize(("paused", "state"), [(False, "QUEUED"), (True, "PAUSED")])
def test_a_trial_whose_run_died_with_its_node(scene: Scene, paused: bool, state: str) -> None:
    """Its job is back in the queue, so that it does not run, though no end record says so."""
    experiment = scene.experiment(2, job="7")
    for index in range(2):  # the first worker has gone on with the other's trial
        scene.run(experiment, index, losses=[0.5], ref="7_0")
    if paused:
        experiment.append({"type": "intent", "intent": "pause"})
    for index in range(2):
        scene.queue.put(f"7_{index}", "PENDING", "BeginTime")
    one, other = scene.client.experiment(1).trials()
    assert (one.state, one.view.state, other.state) == (state, state, "RUNNING")
    assert one.job_status is not None
    assert "waits in the queue: not before its time (BeginTime)" in str(one.job_status.message)


def test_a_trial_that_left_no_trace_is_not_declared_dead(scene: Scene) -> None:
    """Absent from the queue and from all memories means unknown: the store's state stands."""
    scene.run(scene.experiment(job="7"), losses=[0.5])
    scene.queue.jobs.clear()
    trial = scene.client.trial(1)
    assert trial.state == "RUNNING"
    assert trial.job_status is not None and trial.job_status.alive is None
    assert "no record of how" in str(trial.job_status.message)


@pytest.mark.parametrize("where", ["queue", "memory"])
def test_evidence_declares_a_trial_dead_and_is_kept(scene: Scene, where: str) -> None:
    """A final state seen once, in the queue or in accounting, outlives Slurm's memory of it.
    Whoever sees it first, in a list or while waiting, hears what to do."""
    experiment = scene.experiment(job="7")
    scene.run(experiment, losses=[0.5])
    scene.queue.put("7", "NODE_FAIL")
    if where == "memory":
        scene.queue.remembered["7"] = scene.queue.jobs.pop("7")
    seen = scene.client.trial(1)
    scene.queue.jobs.clear()
    scene.queue.remembered.clear()
    later = scene.client.trial(1)
    for trial in (seen, later):
        assert trial.state == "ERROR"
        assert trial.row.end_reason == (
            "job 7 ended: NODE_FAIL; how its run ended is not recorded;"
            " `detslurm e activate 1` queues it again"
        )
        assert trial.experiment.state == "ERROR"
        (run,) = trial.view.runs
        assert (run.outcome, run.ended) == ("lost", run.started), "no duration grows on"
        assert trial.row.ended == trial.experiment.view.ended == run.ended is not None
    assert scene.warnings == [f"experiment 1: {later.row.end_reason}"]


@pytest.mark.parametrize("earlier", [None, "preempted"])
def test_a_job_that_was_cancelled_while_it_waited(scene: Scene, earlier: str | None) -> None:
    """There is no run whose end could be recorded; one before it has ended otherwise."""
    experiment = scene.experiment(job="7")
    if earlier:
        scene.run(experiment, losses=[0.5], end=earlier)
    scene.queue.put("7", "CANCELLED")
    hint = "`detslurm e activate 1` queues it again"
    trial = scene.client.trial(1)
    assert trial.state == "ERROR"
    run = "run 2" if earlier else "its run"
    assert trial.row.end_reason == f"job 7 ended: CANCELLED, before {run} began; {hint}"


def test_logs_of_trials_that_are_over_are_not_kept(scene: Scene) -> None:
    """Who waits for thousands of trials remembers those at work alone."""
    experiment = scene.experiment(2, job="7")
    first, _ = (scene.run(experiment, i, losses=[0.5], ref=f"7_{i}") for i in (0, 1))
    snapshot = scene.client.experiment(1)._snapshot
    snapshot.refresh()
    assert sorted(snapshot.logs) == [1, 2]
    first.write_end(1, {"outcome": "completed", "reason": "", "time": 2000.0})
    snapshot.refresh()
    assert sorted(snapshot.logs) == [2]


def test_an_end_record_written_meanwhile_wins_over_the_evidence(scene: Scene) -> None:
    """A trial that ends between our reading and our look is completed, not lost."""
    experiment = scene.experiment(job="7")
    trial = scene.run(experiment, losses=[0.5])
    scene.queue.put("7", "COMPLETED")
    query = scene.queue.query

    def late(job_ids: list[str]) -> object:
        trial.write_end(1, {"outcome": "completed", "time": 2000.0})
        return query(job_ids)

    scene.queue.query = late  # type: ignore[assignment, method-assign]
    assert scene.client.experiment(1).state == "COMPLETED"
    assert fold_facts(experiment).lost == {}


def test_a_successor_submitted_meanwhile_wins_over_the_evidence(scene: Scene) -> None:
    """A preempted job that queued its successor leaves a queued trial, not a lost one."""
    experiment = scene.experiment(job="7")
    scene.run(experiment, losses=[0.5], end="preempted")
    scene.queue.put("7", "PREEMPTED")
    query = scene.queue.query

    def late(job_ids: list[str]) -> object:
        scene.submitted(experiment, "8", 0, 1)
        return query(job_ids)

    scene.queue.query = late  # type: ignore[assignment, method-assign]
    assert scene.client.trial(1).state == "QUEUED"
    assert fold_facts(experiment).lost == {}


def test_a_killed_trial_whose_runner_never_answered_ends_canceled(scene: Scene) -> None:
    """The user's kill and a vanished job together are the end, and stay it."""
    scene.run(scene.experiment(job="7"), losses=[0.5])
    scene.client.experiment(1).kill()
    assert scene.client.experiment(1).state == "CANCELED"
    scene.queue.jobs.clear()
    assert scene.client.experiment(1).state == "CANCELED"


def test_a_paused_trial_whose_job_vanished_stays_paused(scene: Scene) -> None:
    """Losing a held job is no failure: activate queues a new one."""
    scene.run(scene.experiment(job="7"), losses=[0.5], checkpoint="c1", end="paused")
    scene.client.experiment(1).pause()
    scene.queue.put("7", "CANCELLED")
    assert scene.client.trial(1).state == "PAUSED"


def test_paused_trials_that_never_began_are_not_read_for_want_of_their_jobs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 of them whose held jobs were cancelled in Slurm cost a list nothing, each time; killed,
    they end all the same."""
    scene.experiment(trials=30, job="7")
    scene.client.experiment(1).pause()
    for index in range(30):
        scene.queue.put(f"7_{index}", "CANCELLED")
    read: list[int] = []
    read_trial = ExperimentSnapshot.read_trial

    def counted(snapshot: ExperimentSnapshot, trial: int) -> object:
        read.append(trial)
        return read_trial(snapshot, trial)

    monkeypatch.setattr(ExperimentSnapshot, "read_trial", counted)
    assert [row.state for row in scene.client.rows()] == ["PAUSED"]
    assert read == []
    monkeypatch.undo()
    scene.client.experiment(1).kill()
    assert scene.client.experiment(1).state == "CANCELED"


def test_without_a_controller_states_come_from_the_store(scene: Scene) -> None:
    """A dead controller costs a warning, not the answer."""
    scene.run(scene.experiment(job="7"), losses=[0.5])
    scene.queue.down = True
    assert scene.client.trial(1).state == "RUNNING"
    assert len(scene.warnings) == 1
    assert "Unable to contact" in scene.warnings[0]


def test_a_job_of_another_machines_local_cluster_is_no_loss(scene: Scene) -> None:
    """The local cluster of this machine knows nothing of another machine's jobs."""
    scene.queue.name = "local"
    scene.run(scene.experiment(job="7"), losses=[0.5])
    scene.queue.jobs.clear()
    experiment = scene.client.experiment(1)
    assert experiment.state == "ACTIVE"
    experiment.activate()
    assert scene.queue.requests == []


def test_what_never_existed_is_not_found(scene: Scene) -> None:
    """Unknown ids are told from broken ones, and looking creates nothing."""
    with pytest.raises(NotFound):
        scene.client.experiment(1)
    with pytest.raises(NotFound):
        scene.client.trial(1)
    with pytest.raises(NotFound):
        scene.client.rows()
    assert not scene.root.exists()


def test_checkpoints_and_metrics_come_with_the_trial(scene: Scene) -> None:
    """What a trial saved and reported can be read from the object, on one clean curve."""
    experiment = scene.experiment()
    scene.run(experiment, losses=[0.9, 0.8, 0.7], checkpoint="c1", end="preempted")
    scene.run(experiment, losses=[0.6], end="completed", resume={"uuid": "c1", "steps": 3})
    trial = scene.client.experiment(1).first_trial()
    assert [c.uuid for c in trial.checkpoints()] == ["c1"]
    assert [row.metrics["loss"] for row in trial.iter_metrics()] == [0.9, 0.8, 0.7, 0.6]
    assert list(trial.experiment.iter_metrics()) == list(trial.iter_metrics())
    assert not list(trial.iter_metrics("training")) and not trial.profile()
    columns = trial.metrics("validation", ["loss"])
    assert (columns.steps, columns.metrics) == ([1, 2, 3, 4], {"loss": [0.9, 0.8, 0.7, 0.6]})
    assert trial.metrics("training") == ([], {})


def test_metrics_are_floats_in_lists_before_and_after_the_trial_ends(scene: Scene) -> None:
    """Whether they are read from the logs or from the compacted file: code that works while a
    trial runs must not break on its end."""
    experiment = scene.experiment()
    running = scene.run(experiment)
    with RunLog.open(running.records_path(1)) as log:
        for step, loss in ((1, 3), (2, 10**400), (3, 0.5)):
            metrics = {"loss": loss, "epoch": step}
            log.append({"t": "metrics", "group": "training", "steps": step, "metrics": metrics})
    trial = scene.client.trial(1)
    for _ in range(2):
        found = trial.metrics("training")
        assert repr(found.steps) == "[1, 2, 3]"
        assert repr(found.metrics) == "{'loss': [3.0, inf, 0.5], 'epoch': [1.0, 2.0, 3.0]}"
        frame = trial.metrics_frame("training")
        assert [str(kind) for kind in frame.dtypes] == ["int64", "int64", "float64", "float64"]
        running.write_end(1, {"outcome": "completed"})
        compact(experiment)
    assert running.metrics_path.is_file()
