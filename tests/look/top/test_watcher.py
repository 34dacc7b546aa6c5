"""What `detslurm top` reads and asks, counted; and what it shows."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from detslurm.look.plot import Line
from detslurm.look.top.live_curves import LiveCurves, read_together
from detslurm.look.top.reader import LATEST, MOST, SHARE, SOONEST, PollInterval
from detslurm.look.top.watcher import Page, Request, TopView, Watcher
from detslurm.slurm import JobInfo, SlurmError
from detslurm.store import ExperimentDir, RunLog, TrialDir, compact, overviews
from detslurm.store.compacted import open_compacted
from detslurm.store.records import Created, Deferred, Sending
from tests.sdk.scenes import SEARCH, Scene, say
from tests.store import scenes as store_scenes


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def job(ref: str, state: str, reason: str = "", **more: object) -> JobInfo:
    given: dict[str, Any] = {"name": "det", "user": "alice", "partitions": ("main",), **more}
    return JobInfo(ref, state, reason, **given)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Trial 1 runs, trial 2 waits; a finished experiment with trial 3; and a stranger's job."""
    scene = Scene(tmp_path / "store")
    experiment = scene.experiment(2, name="resnet \x1b[2J sweep")
    scene.run(experiment, 0, losses=[0.5, 0.25], ref="7_0", log=["0: step 1"])
    scene.run(scene.experiment(1, job=None, name="done"), losses=[0.125], end="completed")
    scene.queue.rows = [
        job("7_0", "RUNNING", nodes=("n1",)), job("7_1", "PENDING", "Priority"),
        job("99", "RUNNING"),
    ]  # fmt: skip
    return scene


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watcher(scene: Scene, clock: Clock) -> Watcher:
    return Watcher(scene.root, lambda name: scene.queue, clock)


def page(watcher: Watcher, name: Page, experiment: int = 1, **more: object) -> TopView:
    return watcher.poll(Request(experiment, page=name, **more))  # type: ignore[arg-type]


def test_what_is_shown(watcher: Watcher) -> None:
    """Experiments newest first, trials with why they wait, their log, curves and checkpoints."""
    view = page(watcher, "trials")
    assert [row[:2] + row[3:] for row in view.experiments.values()] == [
        ("2", "COMPLETED", "1/1", "0.125", "done"),
        ("1", "ACTIVE", "1 run, 0/2", "0.25", "resnet ?[2J sweep"),
    ]
    assert view.rows["1"] == ("1", "RUNNING", "2", "0.25", "lr=0.1, i=0", "7_0 on n1", "0")
    assert view.rows["2"][1:] == ("QUEUED", "0", "", "", "7_1: other jobs come first", "0")
    assert (view.title, view.problems) == ("experiment 1 is ACTIVE", [])
    assert page(watcher, "log").log == ["04:46:00 0| step 1"]
    curves = page(watcher, "curves")
    assert curves.curves == [Line([1, 2], [0.5, 0.25], [])]
    assert curves.legend == ["trial 1  RUNNING  0.25 @ 2  lr=0.1, i=0"]
    assert page(watcher, "checkpoints").rows == {}
    queue = page(watcher, "queue").rows
    assert [row[1:] for row in queue.values()] == [
        ("7_0", "RUNNING", "0/0", "alice", "", "", "det"),
        ("99", "RUNNING", "0/0", "alice", "", "", "det"),
        ("7_1", "QUEUED", "0/0", "alice", "other jobs come first", "", "det"),
    ]
    found = watcher.poll(Request(search="DONE compl"))
    assert list(found.experiments) == ["2"] and found.title == "experiment 2 is COMPLETED"


def test_constant_hyperparameters_take_no_room(watcher: Watcher, scene: Scene) -> None:
    """They would push out those that differ, and why trials wait."""
    scene.run(scene.store.experiment(1), 1, ref="7_1")
    assert [row[4] for row in page(watcher, "trials").rows.values()] == ["i=0", "i=1"]


def test_one_squeue_for_thirty_seconds(
    watcher: Watcher, scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is looked at, and however often, even where the controller does not answer."""
    pages: tuple[Page, ...] = ("trials", "queue", "curves", "log", "checkpoints")
    for second in range(0, 300, 3):
        clock.now = float(second)
        page(watcher, pages[second % 5])
    assert (scene.queue.listings, scene.queue.queries) == (10, [])
    scene.queue.down = True
    asked: list[float] = []

    def refuse() -> None:
        asked.append(clock.now)
        raise SlurmError("Unable to contact slurm controller (connect failure)")

    monkeypatch.setattr(scene.queue, "_answer", refuse)
    for second in range(300, 400, 3):
        clock.now = float(second)
        page(watcher, pages[second % 5])
    assert asked == [300.0, 330.0, 360.0, 390.0]


def test_a_store_or_a_queue_that_does_not_answer_is_shown(
    watcher: Watcher, scene: Scene, clock: Clock
) -> None:
    """And what was known stays; when it answers again, so does the view."""
    page(watcher, "trials")
    scene.queue.down, clock.now = True, 31.0
    view = page(watcher, "trials")
    assert any("slurm does not answer" in text for text in view.problems)
    assert view.rows["1"][1] == "RUNNING"
    assert any("Unable to contact" in text for text in page(watcher, "queue").problems)
    scene.queue.down, clock.now = False, 62.0
    assert page(watcher, "trials").problems == []
    away = scene.root.with_name("away")
    scene.root.rename(away)
    assert page(watcher, "log", 2).problems and page(watcher, "trials").experiments
    assert any("there is no store" in text for text in page(watcher, "trials").problems)
    away.rename(scene.root)
    assert page(watcher, "trials").problems == []
    nothing = Watcher(scene.root / "nowhere", lambda name: scene.queue, clock)
    assert "there is no store" in nothing.poll(Request()).problems[0]


def _counting(call: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    caller = threading.get_ident()  # another test's reader may not have ended yet

    def counting(path: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == caller:
            calls.append(str(path))
        return call(path, *args, **options)

    return counting


def test_nothing_new_costs_a_few_names(
    watcher: Watcher, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fact of the ledger and of the experiment, whether that is still the same, and the
    running trial; no trial that waits, however many."""
    scene.experiment(500, job="8")
    scene.queue.rows += [job(f"8_{n}", "PENDING", "Priority") for n in range(500)]
    for _ in range(3):
        page(watcher, "trials")
    calls: list[str] = []
    for name in ("open", "stat", "listdir", "scandir", "lstat"):
        monkeypatch.setattr(os, name, _counting(getattr(os, name), calls))
    assert not page(watcher, "trials").changed
    assert len(calls) <= 13, calls
    scene.run(scene.store.experiment(1), 1, losses=[0.1], ref="7_1")
    monkeypatch.undo()
    scene.queue.rows[1] = job("7_1", "RUNNING")
    assert not page(watcher, "trials").changed, "the queue said that it waits"


def path_calls(watcher: Watcher, experiment: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a look at an experiment in which nothing is new."""
    for _ in range(3):
        page(watcher, "trials", experiment)
    calls: list[str] = []
    with monkeypatch.context() as patch:
        for name in ("open", "stat", "listdir", "scandir", "lstat"):
            patch.setattr(os, name, _counting(getattr(os, name), calls))
        assert not page(watcher, "trials", experiment).changed
    return len(calls)


def test_trials_without_a_job_cost_nothing(
    watcher: Watcher, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose submission is deferred begin after a fact has said so."""
    made = scene.experiment(300, job=None)
    scene.submitted(made, "8", 0, 2)
    scene.queue.rows += [job("8_0", "PENDING", "Priority"), job("8_1", "PENDING", "Priority")]
    made.append(Deferred(first_index=2, count=298))
    assert path_calls(watcher, made.id, monkeypatch) <= 13
    made.append(Sending(first_index=2, count=1))
    scene.submitted(made, "9", 2, 1)
    scene.run(made, 2, losses=[0.1], ref="9")
    first = made.created().first_trial
    assert page(watcher, "trials", made.id).rows[str(first + 2)][1] == "RUNNING"


def test_trials_that_the_queue_does_not_know_cost_listings(
    watcher: Watcher, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred at most, however many trials; one that begins is seen at the next look."""
    made = scene.experiment(900, job="8")  # none of its jobs is among the rows of the queue
    assert path_calls(watcher, made.id, monkeypatch) <= 113
    trial = scene.run(made, 700, losses=[0.1], ref="8_700")
    view = page(watcher, "trials", made.id)
    assert view.changed and view.rows[str(trial.id)][1:4] == ("RUNNING", "1", "0.1")


def test_trials_that_wait_in_a_search_cost_nothing(
    watcher: Watcher, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that stopped at a rung nor those that no worker has taken yet; one that is
    taken, reports and is given back is seen at once."""
    many = SEARCH.replace("max_trials: 6", "max_trials: 60")
    made, log = scene.search(many, workers=1, trials=60)
    scene.queue.rows += [job("7", "RUNNING", nodes=("n1",))]
    first = made.created().first_trial

    def works() -> int:
        index = scene.works(made, log, "7", losses=[0.5 + 0.01 * log.state.created])
        trial = made.trial(first + index)
        run = len(trial.runs())
        trial.write_end(run, {"outcome": "preempted", "exit_code": 0, "time": 2.0})
        validated = {"e": "validated", "trial": index, "time": 3, "metric": 0.5 + 0.01 * index}
        end = {"e": "run_ended", "trial": index, "worker": "7", "outcome": "stopped"}
        log.commit([validated, end])
        return first + index

    seen = [works() for _ in range(2)]
    few = path_calls(watcher, made.id, monkeypatch)
    seen += [works() for _ in range(20)]
    assert path_calls(watcher, made.id, monkeypatch) == few
    index = scene.works(made, log, "7", losses=[0.25])
    view = page(watcher, "trials", made.id)
    assert view.rows[str(first + index)][1:4] == ("RUNNING", "1", "0.25")
    for trial in {*seen} - {first + index}:
        row, is_closed = view.rows[str(trial)], log.state.trials[trial - first].status == "closed"
        assert row[1] in (("COMPLETED",) if is_closed else ("PAUSED", "QUEUED")) and row[3]


def test_what_is_new_is_seen(watcher: Watcher, scene: Scene, clock: Clock) -> None:
    """Metrics, log lines, runs, ends, wishes and experiments."""
    page(watcher, "trials")
    trial = scene.store.find_trial(1)
    with RunLog.open(trial.records_path(1)) as log:
        log.append({"t": "metrics", "group": "validation", "steps": 3, "metrics": {"loss": 0.1}})
    assert page(watcher, "trials").rows["1"][2:4] == ("3", "0.1")
    assert page(watcher, "curves").curves[0].ys == [0.5, 0.25, 0.1]
    page(watcher, "log")
    say(trial, 1, ["0: step 2"])
    assert page(watcher, "log").log[-1] == "04:46:00 0| step 2"
    scene.run(scene.store.experiment(1), 1, losses=[0.1], ref="7_1")
    scene.queue.rows[1] = job("7_1", "RUNNING")
    clock.now = 31.0
    assert page(watcher, "trials").changed
    assert page(watcher, "trials").rows["2"][1] == "RUNNING"
    scene.client.stored(1).pause()
    assert page(watcher, "trials").experiments["1"][1] == "PAUSED"
    scene.experiment(1, job=None)
    assert "3" in page(watcher, "trials").experiments
    trial.write_end(1, {"outcome": "completed", "exit_code": 0, "time": 2000.0})
    assert page(watcher, "trials").rows["1"][1] == "COMPLETED"


def test_a_submission_under_way_is_seen_when_it_is_done(
    watcher: Watcher, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has its trials before there is an experiment to show."""
    page(watcher, "trials")
    create = ExperimentDir.create

    def late(experiment: ExperimentDir, record: Created) -> bool:
        assert "3" not in page(watcher, "trials").experiments
        return create(experiment, record)

    monkeypatch.setattr(ExperimentDir, "create", late)
    scene.experiment(1, job=None)
    view = page(watcher, "trials")
    assert view.changed and "3" in view.experiments
    assert not page(watcher, "trials").changed


LOSS = ("validation", "loss")


def read_of(curves: LiveCurves) -> Line:
    read_together([curves])
    return curves.line(LOSS)


def test_live_curves_read_only_what_is_new(scene: Scene) -> None:
    """Across a restart, and as the whole reading of the same trial has it."""
    trial = scene.store.find_trial(1)
    curves = LiveCurves(trial)
    assert read_of(curves) == Line([1, 2], [0.5, 0.25], [])
    trial.write_end(1, {"outcome": "preempted", "exit_code": 0, "time": 2000.0})
    resume = {"uuid": "c", "steps": 1}
    scene.run(scene.store.experiment(1), losses=[0.3, math.inf, 0.1], resume=resume)
    line = read_of(curves)
    whole = scene.client.trial(1).metrics("validation")
    assert (line.xs, line.ys) == (list(whole.steps), list(whole.metrics["loss"]))
    assert line == Line([1, 2, 3, 4], [0.5, 0.3, math.inf, 0.1], [1])
    done = scene.store.find_trial(3)
    logged = read_of(LiveCurves(done))
    compact(scene.store.experiment(2))
    compacted = LiveCurves(done)
    assert read_of(compacted) == read_of(compacted) == logged == Line([1], [0.125], [])


def test_compacted_curves_are_read_once_for_all_that_are_shown(
    watcher: Watcher, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their file has the tables of all trials; again only when it is another one."""
    experiment = scene.experiment(3)
    for index in range(3):
        scene.run(experiment, index, losses=[0.5, 0.25], end="completed")
    compact(experiment)
    trial = scene.store.find_trial(6)
    store_scenes.claim(trial, 2, continues=True)
    opened: list[TrialDir] = []

    def counted(one: TrialDir) -> Any:
        opened.append(one)
        return open_compacted(one)

    monkeypatch.setattr(overviews, "open_compacted", counted)
    for _ in range(3):
        view = page(watcher, "curves", experiment.id)
        assert [len(line.xs) for line in view.curves] == [2, 2, 2]
    assert len(opened) == 1
    trial.write_end(2, {"outcome": "completed", "time": 2000.0})
    compact(experiment)
    for _ in range(2):
        assert len(page(watcher, "curves", experiment.id).curves) == 3
    assert len(opened) == 2


def test_the_curves_of_any_metric(watcher: Watcher, scene: Scene) -> None:
    """The searcher's first; one that another experiment does not have is that again."""
    trial = scene.store.find_trial(1)
    report = {"t": "metrics", "group": "training", "steps": 3, "metrics": {"lr": 0.5, "n": 7}}
    with RunLog.open(trial.records_path(1)) as log:
        log.append(report)
    view = page(watcher, "curves")
    assert view.metrics == [LOSS, ("training", "lr"), ("training", "n")]
    assert (view.metric, "(1 of 3, m: next)" in view.title) == (LOSS, True)
    other = page(watcher, "curves", metric=("training", "n"))
    assert (other.metric, other.curves) == (("training", "n"), [Line([3], [7.0], [])])
    assert other.legend == ["trial 1  RUNNING  7 @ 3  lr=0.1, i=0"]
    assert page(watcher, "curves", 2, metric=("training", "n")).metric == LOSS


def test_a_store_that_is_made_anew_shows_nothing_of_the_old_one(
    watcher: Watcher, scene: Scene
) -> None:
    """At the same path, with the same ids, between two looks."""
    for name in ("log", "curves"):
        assert page(watcher, name).problems == []
    shutil.rmtree(scene.root)
    anew = Scene(scene.root, scene.queue)
    anew.run(anew.experiment(1, name="anew"), losses=[8.0, 9.0, 7.0], log=["0: other"], ref="7_0")
    curves = page(watcher, "curves")
    assert [row[-1] for row in curves.experiments.values()] == ["anew"]
    assert curves.curves == [Line([1, 2, 3], [8.0, 9.0, 7.0], [])]
    assert page(watcher, "log").log == ["04:46:00 0| other"]
    page(watcher, "curves", 1)
    shutil.rmtree(scene.root)
    again = Scene(scene.root, scene.queue)
    again.run(again.experiment(1, name="over"), losses=[3.0], end="completed")
    assert page(watcher, "curves").curves == [Line([1], [3.0], [])]


def test_the_pace() -> None:
    """Soon while things change, later while nothing does, and never for more than its share; but
    one look that cost much, as the first of a large store, leaves nobody with what was minutes ago.
    """
    pace = PollInterval()
    assert pace.after(changed=True, cost=0.001) == SOONEST
    waits = [pace.after(changed=False, cost=0.001) for _ in range(20)]
    assert waits == sorted(waits) and waits[-1] == LATEST
    assert pace.after(changed=True, cost=0.5) == pytest.approx(0.5 / SHARE)
    assert pace.after(changed=True, cost=3.0) == MOST == 60.0
