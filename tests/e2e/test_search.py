"""Searches on the real cluster: nobody decides but the trials themselves."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import optuna
import pytest

from detslurm.searcher import Search, State
from detslurm.searcher.optuna.bridge import Bridge
from detslurm.searcher.simulation import simulate
from detslurm.searcher.trials import TrialPlan
from detslurm.store import EventLog, ExperimentFacts, RunView
from tests.cluster import Cluster
from tests.cluster.processes import alive
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_process, find_processes, processes_of
from tests.e2e.test_main_job import make_room

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

# A trial learns its own x the better the longer it trains; it saves at every operation's end.
LEARNS = """\
    import os, pathlib, time
    import detslurm as det

    info = det.get_cluster_info()
    x = info.trial.hparams["x"]
    folder = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"])
    with det.core.init() as core:
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        for op in core.searcher.operations():
            while step < op.length:
                step += 1
                if (folder / "wait").exists():
                    print("waiting", flush=True)
                while (folder / "wait").exists() and not core.preempt.should_preempt():
                    time.sleep(0.05)
                if core.preempt.should_preempt():
                    with core.checkpoint.store_path({"steps_completed": step - 1}) as (path, _):
                        (path / "step").write_text(str(step - 1))
                    raise SystemExit(0)
            loss = x + 1 / step
            core.train.report_validation_metrics(step, {"loss": loss})
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "step").write_text(str(step))
            op.report_completed(loss)
"""

ASHA = """\
    searcher:
      name: adaptive_asha
      metric: loss
      max_length: {batches: 9}
      max_trials: 8
      divisor: 3
      max_rungs: 2
      mode: aggressive
      max_concurrent_trials: 4
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    reproducibility: {experiment_seed: 5}
    """


def project(desk: Desk, script: str, config: str, name: str = "project") -> Path:
    """As `Desk.project`, with a searcher of its own."""
    desk.write(f"{name}/train.py", script)
    base = "name: search\nentrypoint: python3 train.py\nslurm: {slot_type: cpu}\n"
    path = desk.write(f"{name}/experiment.yaml", config)
    path.write_text(base + path.read_text())
    return path


def state_of(desk: Desk, number: int) -> State:
    """The search as its log tells."""
    experiment = desk.experiment(number)
    return EventLog(experiment.search, Search(experiment.config())).catch_up()


def rungs(desk: Desk, number: int) -> list[list[int]]:
    """How many trials reached each rung, bracket by bracket."""
    return [[len(r.results) for r in b.rungs] for b in state_of(desk, number).brackets]


def hold_back(desk: Desk, number: int) -> None:
    """Let the trials of an experiment wait after their first step."""
    (desk.experiment(number).path / "wait").touch()


def let_go(desk: Desk, number: int) -> None:
    (desk.experiment(number).path / "wait").unlink()


def assert_sound(desk: Desk, number: int) -> State:
    """The search is over, each of its trials closed, and each decision was made once."""
    state = state_of(desk, number)
    view = desk.view(number)
    assert state.done
    assert view.state == "COMPLETED"
    assert len(view.trials) == state.created
    assert all(trial.outcome is not None for trial in state.trials)
    for bracket in state.brackets:
        for rung in bracket.rungs:
            judged = [index for _, _, index in rung.results]
            assert len(judged) == len(set(judged)), "a trial was judged twice"
    return state


def wait_until_working(desk: Desk, number: int, workers: int) -> State:
    """Wait until so many workers have begun to train."""

    def there() -> State | None:
        state = state_of(desk, number)
        begun = state.workers.values()
        ready = len(begun) >= workers and all(_is_waiting(desk, number, index) for index in begun)
        return state if ready else None

    state = wait_for(there, PATIENCE, f"{workers} workers at work")
    assert state is not None
    return state


def _is_waiting(desk: Desk, number: int, index: int) -> bool:
    """Whether the newest run of a trial has said so, and has not ended."""
    runs = desk.trial(number, index).runs
    log = desk.trial_dir(number, index).log_path(len(runs))
    runs_now = bool(runs) and runs[-1].outcome is None
    return runs_now and log.exists() and "waiting" in log.read_text()


def all_runs(desk: Desk, number: int) -> list[RunView]:
    """Of all trials."""
    trials = desk.view(number).trials
    return [run for row in trials for run in desk.trial_by_id(number, row.id).runs]


def outcomes(desk: Desk, number: int) -> Counter[str | None]:
    """How all runs of all trials ended."""
    return Counter(run.outcome for run in all_runs(desk, number))


# Reports every step and asks whether to go on. By this seed the first sample is the best one, so
# that not every trial can be better than those before it.
STOPPABLE = """\
    import detslurm as det

    info = det.get_cluster_info()
    with det.core.init() as core:
        for step in range(1, 10):
            loss = info.trial.hparams["x"] + 1 / step
            core.train.report_validation_metrics(step, {"loss": loss, "batches": step})
            if core.preempt.should_preempt():
                break
"""

STOPPING = """\
    searcher:
      name: async_halving
      metric: loss
      time_metric: batches
      max_time: 9
      num_rungs: 2
      max_trials: 6
      divisor: 3
      max_concurrent_trials: 3
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    reproducibility: {experiment_seed: 21}
    """


def test_stopped_trials_leave_at_once_and_count_as_completed(desk: Desk) -> None:
    """A Stop reaches the trial through should_preempt(), and nobody runs it again."""
    number = desk.submit(project(desk, STOPPABLE, STOPPING))
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    ((low, top),) = rungs(desk, number)
    assert low == 6 and 1 <= top < 6
    for index, trial in enumerate(state.trials):
        view = desk.trial(number, index)
        assert desk.outcomes(number, index) == ["completed"]
        assert view.end_reason == "stopped by the search"
        assert view.steps == (9 if len(trial.rung_results) == 2 else 3)


# The first trial reaches the target once the other one trains, too, and has a report to make.
FINDS = """\
    import os, pathlib, time
    import detslurm as det

    info = det.get_cluster_info()
    go = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "go"
    with det.core.init() as core:
        step = 0
        while not core.preempt.should_preempt():
            step += 1
            found = info.trial.hparams["x"] == 4 and go.exists()
            core.train.report_validation_metrics(step, {"accuracy": 0.95 if found else 0.5})
            time.sleep(0.05)
        with core.checkpoint.store_path({"steps_completed": step}):
            pass
"""

UNTIL_FOUND = """\
    searcher:
      name: grid
      metric: accuracy
      smaller_is_better: false
      max_concurrent_trials: 2
      stop: {target: 0.95}
    hyperparameters:
      x: {type: int, minval: 1, maxval: 4, count: 4}
    """


def test_a_search_ends_with_its_target(desk: Desk, site: Cluster) -> None:
    """The trial that finds it and the other one at work save and leave; the rest never begins."""
    number = desk.submit(project(desk, FINDS, UNTIL_FOUND))

    def both_train() -> bool:
        trials = desk.view(number).trials
        return len(trials) == 2 and all(trial.steps for trial in trials)

    wait_for(both_train, PATIENCE, "two trials at work")
    (desk.experiment(number).path / "go").touch()
    desk.wait_for_state(number, "COMPLETED")
    view = desk.view(number)
    reason = f"searcher.stop.target: trial {view.trials[0].id} reported accuracy 0.95, and"
    assert view.end_reason == f"{reason} the target is 0.95"
    assert view.best_trial == view.trials[0].id
    assert view.end_reason in desk.run("e", "list", "--csv").stdout
    assert f"Reason : {view.end_reason}" in desk.run("e", "describe", str(number)).stdout
    for index in range(2):
        trial = desk.trial(number, index)
        assert (trial.end_reason, len(trial.checkpoints)) == ("stopped by the search", 1)
    assert [trial.run_count for trial in view.trials] == [1, 1]
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")


BOWL = """\
    import detslurm as det

    x = det.get_cluster_info().trial.hparams["x"]
    with det.core.init() as core:
        for epoch in (1, 2):
            loss = abs(x - 0.3) + 1 / epoch
            core.train.report_validation_metrics(epoch, {"loss": loss, "epochs": epoch})
            if core.preempt.should_preempt():
                break
"""
MODELLED = """\
    searcher:
      name: async_halving
      metric: loss
      time_metric: epochs
      max_time: 2
      num_rungs: 2
      divisor: 2
      max_trials: 7
      max_concurrent_trials: 1
      sampler: tpe
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    reproducibility: {experiment_seed: 5}
    """


class _Bowl:
    """What the trials of BOWL report."""

    def metric(self, plan: TrialPlan, index: int, units: int) -> float:
        return float(abs(plan.hparams["x"] - 0.3) + 1 / units)

    def seconds(self, plan: TrialPlan, index: int, start: int, end: int) -> float:
        return float(end - start)


def test_a_model_of_the_results_chooses_samples_as_in_a_simulation(desk: Desk) -> None:
    """Four results choose the next two samples; with this seed and order, always the same ones."""
    number = desk.submit(project(desk, BOWL, MODELLED))
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    config = desk.experiment(number).config()
    search = Search(config)
    bridge = Bridge(search.searcher, search.space, search.seed)
    expected = simulate(config, 1, _Bowl(), suggest=bridge.suggest)
    assert [trial.modelled for trial in state.trials] == [False] * 4 + [True, True, False]
    assert [trial.metric for trial in state.trials] == [trial.metric for trial in expected.each]
    assert state.optuna == optuna.__version__


@pytest.mark.slow
def test_trials_of_dead_workers_are_taken_over(desk: Desk, site: Cluster) -> None:
    """kill -9 of a runner and the power cut of a node cost time only: others go on from there."""
    number = desk.submit(project(desk, LEARNS, ASHA), "slurm.sbatch_args=[--exclusive]", "--paused")
    hold_back(desk, number)
    desk.run("experiment", "activate", str(number))
    workers = wait_until_working(desk, number, 4).workers
    runner = find_process(f"detslurm.exec.runner {desk.experiment(number).path} ")
    os.kill(runner, signal.SIGKILL)
    (dead,) = wait_for(
        lambda: [ref for ref in workers if site.job(ref).get("JobState") == "FAILED"],
        PATIENCE,
        "its end",
    )
    cut = next(ref for ref in workers if ref != dead)
    node = site.job(cut)["NodeList"]
    site.kill_node(node)
    try:
        wait_for(lambda: site.job(cut).get("Restarts") == "1", PATIENCE, "its requeue")
        let_go(desk, number)
        desk.wait_for_state(number, "COMPLETED")
    finally:
        site.boot_node(node)
    state = assert_sound(desk, number)
    assert rungs(desk, number)[0][0] == 8
    assert outcomes(desk, number)["lost"] == 2, all_runs(desk, number)
    orphan = desk.trial(number, workers[dead])
    assert [run.job.ref == dead for run in orphan.runs[:2]] == [True, False]
    assert state.trials[workers[dead]].lost == 1, "its worker was seen to be gone"
    assert all(row.restarts == 0 for row in desk.view(number).trials)


def test_a_search_outlives_all_its_workers(desk: Desk, site: Cluster) -> None:
    """When all runners are killed at once a standby worker comes, and brings more workers."""
    number = desk.submit(project(desk, LEARNS, ASHA), "--paused")
    hold_back(desk, number)
    desk.run("experiment", "activate", str(number))
    wait_until_working(desk, number, 4)
    old = processes_of(desk, number)
    for runner in find_processes(f"detslurm.exec.runner {desk.experiment(number).path} "):
        os.kill(runner, signal.SIGKILL)
    wait_for(lambda: not any(map(alive, old)), PATIENCE, "their code to be gone")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    assert sum(trial.lost for trial in state.trials) == 4
    assert outcomes(desk, number)["lost"] == 4
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")


LINGERS = """\
    import time
    import detslurm as det

    with det.core.init() as core:
        for op in core.searcher.operations():
            core.train.report_validation_metrics(op.length, {"loss": 1.0})
            op.report_completed(1.0)
            print("has told all", flush=True)
            time.sleep(3600)
"""
ONE_TRIAL = """\
    searcher: {name: adaptive_asha, metric: loss, max_length: {batches: 9}, max_trials: 1}
    hyperparameters: {x: {type: double, minval: 0, maxval: 1}}
    """


def test_the_last_worker_dies_with_everything_told(desk: Desk, site: Cluster) -> None:
    """The standby worker that comes says that the search is over, and tidies up."""
    number = desk.submit(project(desk, LINGERS, ONE_TRIAL))
    desk.wait_for_log(number, "has told all")
    (runner,) = find_processes(f"detslurm.exec.runner {desk.experiment(number).path} ")
    os.kill(runner, signal.SIGKILL)
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    assert [trial.outcome for trial in state.trials] == ["completed"]
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")
    assert (desk.experiment(number).path / "metrics.h5").exists()


def test_preempted_paused_and_activated(desk: Desk, site: Cluster) -> None:
    """Workers that give way come back, and the search goes on where it was."""
    number = desk.submit(project(desk, LEARNS, ASHA), "resources.resource_pool=low", "--paused")
    hold_back(desk, number)
    assert desk.view(number).state == "PAUSED"
    desk.run("experiment", "activate", str(number))
    before = wait_until_working(desk, number, 4)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")
    wait_for(lambda: outcomes(desk, number)["preempted"] == 4, PATIENCE, "the trials to leave")
    again = wait_until_working(desk, number, 4)
    assert sorted(again.workers.values()) == sorted(before.workers.values())
    desk.run("experiment", "pause", str(number))
    wait_for(lambda: outcomes(desk, number)["paused"] == 4, PATIENCE, "all workers to leave")
    assert desk.view(number).state == "PAUSED"
    let_go(desk, number)
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    assert not any(trial.lost for trial in state.trials)
    assert all(trial.restarts == 0 for trial in desk.view(number).trials)


# Every third sample makes no sense, every other one of the rest fails always.
TROUBLED = """\
    import detslurm as det

    info = det.get_cluster_info()
    index = info.trial.trial_id - FIRST
    with det.core.init() as core:
        if index % 3 == 0:
            raise det.InvalidHP("no such thing")
        if index % 2:
            raise RuntimeError("bad luck")
        for op in core.searcher.operations():
            core.train.report_validation_metrics(op.length, {"loss": 1.0})
            op.report_completed(1.0)
"""


def test_failures_and_invalid_samples_do_not_stop_a_search(desk: Desk) -> None:
    """Trials that always fail count as worst, invalid ones are replaced: eight count in the end."""
    first = next_trial(desk)
    script = TROUBLED.replace("FIRST", str(first))
    number = desk.submit(project(desk, script, ASHA), "max_restarts=0")
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    ended = Counter(trial.outcome for trial in state.trials)
    assert state.created - ended["invalid_hp"] == 8
    assert ended["invalid_hp"] >= 3 and ended["error"] >= 2 and ended["completed"] >= 2
    states = desk.view(number).trial_states
    assert states["ERROR"] == ended["error"]
    # Two workers may each reserve ids for the next trials: then those of one are never used.
    ids = ExperimentFacts().fold(desk.experiment(number).facts()).trial_ids
    ended_ids = zip(ids, state.trials, strict=False)
    invalid = [trial_id for trial_id, trial in ended_ids if trial.outcome == "invalid_hp"]
    assert [(trial_id - first) % 3 for trial_id in invalid] == [0] * len(invalid)


def next_trial(desk: Desk) -> int:
    return desk.store.ledger_state().next_trial


def test_a_search_of_failures_is_an_error(desk: Desk) -> None:
    """Only where every trial failed the search has failed."""
    number = desk.submit(project(desk, "raise SystemExit(3)", ASHA), "max_restarts=0")
    desk.wait_for_state(number, "ERROR")
    state = state_of(desk, number)
    assert state.done and state.verdict == "error"
    assert Counter(trial.outcome for trial in state.trials) == {"error": 8}


# Says which job it runs in; samples below the limit are no good.
PACKED = """\
    import detslurm as det

    info = det.get_cluster_info()
    with det.core.init() as core:
        if info.trial.hparams["x"] < 0.3:
            raise det.InvalidHP("too small")
        core.train.report_validation_metrics(1, {"loss": 1.0})
"""

RANDOM = """\
    searcher: {name: random, metric: loss, max_length: 1, max_trials: 5}
    hyperparameters:
      x: {type: double, minval: 0, maxval: 1}
    reproducibility: {experiment_seed: 1}
    """


def test_several_trials_in_one_job_and_invalid_ones_replaced(desk: Desk, site: Cluster) -> None:
    """Three trials share an allocation one after the other; a random search has all its samples."""
    number = desk.submit(project(desk, PACKED, RANDOM), "slurm.trials_per_job=3")
    desk.wait_for_state(number, "COMPLETED")
    view = desk.view(number)
    (job,) = view.jobs
    assert job.refs == [f"{job.job_id}_0", f"{job.job_id}_1"]
    ended = Counter(desk.outcomes(number, i)[-1] for i in range(len(view.trials)))
    assert ended["completed"] == 5 and ended["invalid_hp"] >= 1
    where = [desk.trial(number, i).runs[0].job.array_task_id for i in range(5)]
    assert where == [0, 0, 0, 1, 1]
    xs = [trial.hparams["x"] for trial in view.trials if trial.hparams]
    assert len(set(xs)) == len(xs) == len(view.trials)
    assert sum(x >= 0.3 for x in xs) == 5


def test_a_search_where_jobs_must_not_submit_jobs(desk: Desk, site: Cluster) -> None:
    """Four workers run eight trials by promotion, each promoted trial from its own checkpoint.
    Cover waits in the array; at the end nothing of it is left in the queue."""
    profile = desk.write("site.yaml", "submit_from_jobs: false\n")
    desk.user.env["DETSLURM_SITE"] = str(profile)
    number = desk.submit(project(desk, LEARNS, ASHA), "slurm.trials_per_job=2")
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    view = desk.view(number)
    assert [(job.count, job.standby) for job in view.jobs] == [(4, False), (1, True)]
    ((low, top),) = rungs(desk, number)
    assert low == 8 and 2 <= top < 8
    steps = Counter(trial.steps for trial in view.trials)
    assert steps == {3: 8 - top, 9: top}
    assert view.trial_states == {"COMPLETED": 8}
    assert view.best_trial is not None
    assert desk.trial_by_id(number, view.best_trial).steps == 9
    for index, trial in enumerate(state.trials):
        runs = desk.trial(number, index).runs
        assert [run.resumed_steps for run in runs] == [0, 3][: trial.fencing_token]
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")


def test_a_canceled_search_ends(desk: Desk, site: Cluster) -> None:
    """Its trials leave, nothing starts any more, the queue is empty."""
    number = desk.submit(project(desk, LEARNS, ASHA), "--paused")
    hold_back(desk, number)
    desk.run("experiment", "activate", str(number))
    wait_until_working(desk, number, 4)
    desk.run("experiment", "cancel", str(number))
    desk.wait_for_state(number, "CANCELED")
    wait_for(lambda: outcomes(desk, number) == {"canceled": 4}, PATIENCE, "all runs to end")
    assert not state_of(desk, number).done
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")
