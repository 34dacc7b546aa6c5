"""A trial's log is that of all its runs, in order, filtered, from either end, or as it grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk import Trial
from detslurm.sdk.enums import LogLevel
from detslurm.sdk.experiments import polling
from detslurm.sdk.trials import logs
from detslurm.sdk.trials.log_lines import Filter, LogLine, named_level, timestamp
from detslurm.store import TrialDir
from tests.sdk.scenes import Scene, say


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


@pytest.fixture
def trial(scene: Scene) -> TrialDir:
    """A trial with two runs of three lines each."""
    experiment = scene.experiment(job="7")
    scene.run(experiment, log=["begin 1", "0: a", "1: b"], end="preempted")
    return scene.run(experiment, log=["begin 2", "0: c", "1: d"])


def test_runs_follow_one_another(trial: TrialDir) -> None:
    """Nothing is lost at the seam of two runs."""
    found = list(logs.lines(trial))
    assert texts(found) == ["begin 1", "a", "b", "begin 2", "c", "d"]
    assert [line.run for line in found] == [1, 1, 1, 2, 2, 2]
    assert [line.rank for line in found] == [None, 0, 1, None, 0, 1]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 9])
def test_head_and_tail_are_the_two_ends(trial: TrialDir, count: int) -> None:
    """They give what slicing the whole would."""
    whole = list(logs.lines(trial))
    assert list(logs.head(trial, count)) == whole[:count]
    assert logs.tail(trial, count) == (whole[-count:] if count else [])


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1000])
def test_tail_does_not_depend_on_how_it_is_read(
    trial: TrialDir, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that straddle blocks, empty lines and a missing newline at the end come out whole."""
    path = trial.log_path(2)
    path.write_text(path.read_text() + "\n\nnot finished äöü")
    monkeypatch.setattr(logs, "_BLOCK", block)
    assert logs.tail(trial, 100) == list(logs.lines(trial))


def test_filters_select_by_rank_and_time(scene: Scene) -> None:
    """Bounds are exclusive, ranks are those asked for."""
    trial = scene.run(scene.experiment())
    for second in range(5):
        say(trial, 1, [f"0: {second}", f"1: {second}"], second)
    after, before = (
        timestamp("2026-11-21T04:46:01Z"),
        timestamp("2026-11-21T05:46:04+01:00"),
    )
    found = list(logs.lines(trial, Filter({1}, before, after)))
    assert [(line.rank, line.text) for line in found] == [(1, "2"), (1, "3")]
    assert logs.tail(trial, 1, Filter({0})) == [list(logs.lines(trial))[-2]]


def test_what_chooses_no_lines_is_refused(scene: Scene) -> None:
    """Text for a list of ranks would choose none; a negative count all but some."""
    trial = scene.client.trial(scene.run(scene.experiment(), log=["0: a"]).id)
    chosen: list[dict[str, Any]] = [{"rank_ids": "0"}, {"rank_ids": ["0"]}]
    for wrong in chosen:
        with pytest.raises(TypeError):
            trial.logs(**wrong)
    for name in ("head", "tail"):
        count: dict[str, Any] = {name: -1}
        with pytest.raises(ValueError, match=f"{name} is -1: it must be at least 0"):
            trial.logs(**count)
    assert list(trial.logs(rank_ids=[0], tail=1))


LEVELS = {
    "loss 0.5, ERROR 3": "INFO",
    "ERROR: disk": "ERROR",
    "WARNING:root:old": "WARNING",
    "detslurm: WARNING: core: slow": "WARNING",
    "detslurm: run 1 begins": "INFO",
    "[DEBUG] x": "DEBUG",
    "2026-11-21 04:46:03,120 - train.py - CRITICAL - no data": "CRITICAL",
    "04:46:03 INFO     | all well": "INFO",
    "2026-11-21T04:46:03Z ERROR: late": "ERROR",
    "W1121 23:32:09.330000 835 torch/distributed/run.py:8] slow": "WARNING",
    "ERRORS of the model: 3": "INFO",
    "": "INFO",
}


def test_levels_are_named_in_the_usual_forms() -> None:
    """Of Python's logging, of Determined, of torch; a word further on is no level."""
    assert {text: named_level(text).name for text in LEVELS} == LEVELS


def test_filters_select_by_level_source_and_text(scene: Scene) -> None:
    """A traceback is an error of its rank from its first line to its last; a print is INFO."""
    spoken = ["0: DEBUG: begin", "0: Traceback (most recent call last):", "1: step 1",
              '0:   File "train.py"', "0: ", "0: ValueError: bad", "0: step 2",
              "1: WARNING: slow", "1:     very slow", "detslurm: ERROR: rank 0 left"]  # fmt: skip
    trial = scene.run(scene.experiment(), log=spoken)

    def found(**chosen: object) -> list[int]:
        whole = list(logs.lines(trial))
        wanted = Filter(**chosen)  # type: ignore[arg-type]
        assert list(logs.lines(trial, wanted))[-2:] == logs.tail(trial, 2, wanted)
        return [whole.index(line) for line in logs.lines(trial, wanted)]

    assert found(level=LogLevel.TRACE) == list(range(10))
    assert found(level=LogLevel.INFO) == list(range(1, 10))
    assert found(level=LogLevel.WARNING) == [1, 3, 4, 5, 7, 8, 9]
    assert found(level=LogLevel.ERROR) == [1, 3, 4, 5, 9]
    assert found(level=LogLevel.ERROR, ranks={0}, text="F") == [3]
    assert found(sources={"detslurm"}) == [9] and found(sources={"code"}) == list(range(9))


def test_moments_come_as_rfc3339_or_seconds() -> None:
    """Both forms give the stamp of the log; nonsense is refused."""
    assert timestamp("2026-11-21T04:46:03Z") == "2026-11-21T04:46:03.000000Z"
    assert timestamp("0") == "1970-01-01T00:00:00.000000Z"
    assert timestamp(1.5) == "1970-01-01T00:00:01.500000Z"
    with pytest.raises(ValueError):
        timestamp("yesterday")


def test_a_line_of_another_form_is_kept(scene: Scene) -> None:
    """What the runner did not stamp is shown as it is, whatever its bytes."""
    trial = scene.run(scene.experiment())
    trial.log_path(1).write_bytes(b"plain \xff\n")
    assert texts(list(logs.lines(trial))) == ["plain \ufffd"]


TRACEBACK = ["0: Traceback (most recent call last):", '0:   File "train.py"', "0: ValueError: bad"]


def test_the_failure_excerpt_is_the_traceback(scene: Scene) -> None:
    """Of the last run, of the rank that failed first, without what others say in between."""
    old = ["0: Traceback (most recent call last):", "0: OldError", "run 1 ended"]
    new = [TRACEBACK[0], "1: Traceback (most recent call last):", *TRACEBACK[1:], "run 2 ended"]
    trial = scene.run(scene.experiment(), log=[*old, "0: all well", *new])
    assert logs.failure_excerpt(trial) == [line[3:] for line in TRACEBACK]


def test_the_failure_excerpt_is_the_users_not_torchruns(scene: Scene) -> None:
    """Torch marks the lines of a rank's traceback; torchrun has tracebacks of its own."""
    torch = [line.replace(": ", ": [rank0]: ", 1) for line in TRACEBACK]
    elastic = "0: E1121 23:32:09.33 835 torch/distributed/elastic/api.py:1002] failed"
    launcher = [elastic, "0: Traceback (most recent call last):", "0: ChildFailedError:"]
    trial = scene.run(scene.experiment(), log=[*torch, *launcher, "run 1 ended"])
    assert logs.failure_excerpt(trial) == [line[3:] for line in TRACEBACK]


def test_the_failure_excerpt_is_no_exception_that_python_ignored(scene: Scene) -> None:
    """Python ends a data loader's workers when it leaves, and torch complains that they died."""
    ignored = ["0: Exception ignored in atexit callback: <function _exit_function at 0x7ff2>"]
    ignored += ["0: Traceback (most recent call last):", "0: RuntimeError: worker is killed"]
    trial = scene.run(scene.experiment(), log=[*TRACEBACK, *ignored, "run 1 ended"])
    assert logs.failure_excerpt(trial) == [line[3:] for line in TRACEBACK]


def test_the_failure_excerpt_is_not_what_the_agent_says_afterwards(scene: Scene) -> None:
    """The last line is the error: hints go by it."""
    gone = "0: detslurm: deleted with the working directory: out/. To keep files"
    trial = scene.run(scene.experiment(), log=[*TRACEBACK, gone, "run 1 ended"])
    assert logs.failure_excerpt(trial) == [line[3:] for line in TRACEBACK]


def test_the_failure_excerpt_of_a_silent_failure_is_its_last_lines(scene: Scene) -> None:
    """Without a traceback the end of the log has to do."""
    trial = scene.run(scene.experiment(), log=[f"0: {n}" for n in range(50)])
    assert logs.failure_excerpt(trial) == [str(n) for n in range(40, 50)]


class Clock:
    """Time that passes only when somebody sleeps; each sleep plays the next act."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.now = 0.0
        self.acts = list(acts)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10_000, "waited in vain"
        if self.acts:
            self.acts.pop(0)()


def followed(trial: Trial, clock: Clock, **more: Any) -> list[str]:
    """The lines that following prints until it ends."""
    return texts([*polling.follow_logs(trial, clock=clock, sleep=clock.sleep, **more)])


def test_following_goes_on_across_requeues_until_the_trial_is_over(scene: Scene) -> None:
    """Every line of every run comes once, in order, and then the stream ends."""
    experiment = scene.experiment(job="7")
    trial = scene.client.trial(1)
    place = trial.directory

    def first() -> None:
        scene.run(experiment, log=["begin", "0: a"])

    def preempted() -> None:
        say(place, 1, ["0: b"])
        place.write_end(1, {"outcome": "preempted", "time": 1.0})

    def second() -> None:
        scene.run(experiment, log=["again", "0: c"])

    def done() -> None:
        say(place, 2, ["0: d"])
        place.write_end(2, {"outcome": "completed", "time": 2.0})

    acts = (first, preempted, lambda: None, second, done)
    assert followed(trial, Clock(*acts)) == ["begin", "a", "b", "again", "c", "d"]


def test_what_is_written_while_the_end_is_noticed_is_not_lost(scene: Scene) -> None:
    """The last lines may come between the last read and the end record."""
    place = scene.run(scene.experiment(), log=["0: a"])

    def over(run: int) -> bool:
        say(place, run, ["0: b"])
        return True

    assert texts(list(logs.follow(place, over, lambda: None))) == ["a", "b"]


def test_a_last_line_without_an_end_is_followed_too(scene: Scene) -> None:
    """A node died, or its disk was full, while it was written: no run goes on with it."""
    made = scene.experiment()
    for run, end in ((1, "preempted"), (2, None)):
        place = scene.run(made, log=["0: a"], end=end)
        with place.log_path(run).open("a") as log:
            log.write("torn")
    found = list(logs.follow(place, lambda run: True, lambda: None))
    assert texts(found) == ["a", "torn", "a", "torn"] == texts(list(logs.lines(place)))


def test_following_a_tail_shows_no_line_twice(scene: Scene) -> None:
    """First the last lines, then what is new."""
    experiment = scene.experiment(job="7")
    place = scene.run(experiment, log=["0: a", "0: b", "0: c"])

    def done() -> None:
        say(place, 1, ["0: d"])
        place.write_end(1, {"outcome": "completed", "time": 2.0})

    assert followed(scene.client.trial(1), Clock(done), tail_count=2) == ["b", "c", "d"]


def test_following_says_why_nothing_comes_and_rarely_asks_the_queue(scene: Scene) -> None:
    """A new reason is told once; the queue is looked at every half minute at most."""
    scene.experiment(job="7")
    reported: list[str] = []
    trial = scene.client.trial(1)
    quiet = [lambda: None] * 100
    clock = Clock(
        *quiet,
        lambda: scene.queue.put("7", "PENDING", "Resources"),
        *quiet,
        lambda: scene.client.trial(1).kill(),
    )
    asked = len(scene.queue.queries)
    assert followed(trial, clock, report=reported.append) == []
    assert reported == [
        "job 7 waits in the queue: other jobs come first (Priority)",
        "job 7 waits in the queue: nodes are busy (Resources)",
    ]
    assert len(scene.queue.queries) - asked <= 2 + clock.now / 30


def test_following_a_trial_that_rests_asks_nobody_to_act(scene: Scene) -> None:
    """Only a pause of the experiment needs `activate`; a search goes on by itself."""
    experiment, log = scene.search()
    index = scene.works(experiment, log, "7_0", losses=[0.1], end="out_of_ops")
    left = {"e": "run_ended", "trial": index, "worker": "7_0", "outcome": "out_of_ops"}
    log.commit([{"e": "validated", "trial": index, "length": 3, "metric": 0.1}, left])
    reported: list[str] = []
    trial = scene.client.trial(1)
    quiet = [lambda: None] * 3
    kill = [lambda: scene.client.experiment(1).kill()]
    pause = [lambda: scene.client.experiment(1).pause()]
    clock = Clock(*quiet, *pause, *quiet, *kill)
    assert followed(trial, clock, report=reported.append) == []
    assert reported == [
        "trial 1 is paused by the search, and continues if the search promotes it",
        "trial 1 is paused: `detslurm e activate 1`",
    ]


def test_following_ends_when_the_job_is_proved_dead(scene: Scene) -> None:
    """A node that took the runner with it leaves no end record: Slurm's has to do."""
    scene.run(scene.experiment(job="7"), log=["0: a"])
    clock = Clock(lambda: scene.queue.put("7", "NODE_FAIL"))
    trial = scene.client.trial(1)
    assert followed(trial, clock) == ["a"]
    assert trial.state == "ERROR"


def test_the_jobs_own_output_explains_what_failed_before_any_run(scene: Scene) -> None:
    """A failing setup line is said by the batch script only."""
    experiment = scene.experiment(job="7")
    (experiment.jobs / "slurm-7.out").write_text("module: no such module cuda\n")
    found = logs.job_output(scene.client.trial(1))
    assert found[1:] == ["module: no such module cuda"]


def test_what_other_jobs_printed_is_no_log_of_a_trial_that_was_killed_before_its_run(
    scene: Scene,
) -> None:
    experiment = scene.experiment(2, job="7")
    (experiment.jobs / "slurm-7.out").write_text("detslurm: job 7_1: slurm.setup failed\n")
    scene.client.trial(1).kill()
    scene.queue.put("7_0", "CANCELLED")
    killed = scene.client.trial(1)
    assert killed.state == "CANCELED"
    assert list(killed.logs()) == []
    scene.queue.put("7_1", "FAILED")
    assert len(list(scene.client.trial(2).logs())) == 2


def test_waiting_ends_with_the_experiment(scene: Scene) -> None:
    """Progress is told when it changes, and the final state is the answer."""
    experiment = scene.experiment(2, job="7")
    reported: list[str] = []
    clock = Clock(
        lambda: scene.run(experiment, 0, ref="7_0", end="completed"),
        lambda: None,
        lambda: scene.run(experiment, 1, ref="7_1", end="completed"),
    )
    found = polling.wait(
        scene.client.experiment(1), report=reported.append, clock=clock, sleep=clock.sleep
    )
    assert found == "COMPLETED"
    assert clock() < 3  # a short one is not waited for in long steps
    assert len(scene.queue.queries) == 1
    behind = "waits in the queue: other jobs come first (Priority)"
    assert [text.split("% done ")[1] for text in reported] == [
        f"(2 QUEUED); job 7_0 {behind}",
        f"(1 COMPLETED, 1 QUEUED); job 7_1 {behind}",
        "(2 COMPLETED)",
    ]


def test_waiting_ends_when_a_pause_has_freed_everything(scene: Scene) -> None:
    """An experiment that rests would be waited for in vain."""
    experiment = scene.experiment(job="7")
    place: Path = scene.run(experiment, losses=[0.5]).end_path(1)
    scene.queue.put("7", "RUNNING")
    clock = Clock(
        lambda: scene.client.experiment(1).pause(),
        lambda: experiment.trial(1).write_end(1, {"outcome": "paused", "time": 1.0}),
    )
    found = polling.wait(scene.client.experiment(1), clock=clock, sleep=clock.sleep)
    assert found == "PAUSED"
    assert place.exists()


def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path) -> None:
    """From either end and as it grows, memory stays bounded and nothing is lost."""
    path = tmp_path / "log"
    path.write_bytes(b"begin\n" + b"x" * 5_000_000)
    reads = (logs._forward(path), logs._backward(path), logs.Appended(path).read())
    for pieces in map(list, reads):
        assert max(map(len, pieces)) < 3_000_000
        assert "begin" in pieces
    assert sum(len(piece) for piece in logs._forward(path)) == 5_000_005


def test_a_trial_that_has_begun_is_not_called_queued(scene: Scene) -> None:
    """The queue is asked every half minute: what it said before the run began is no news of it."""
    experiment = scene.experiment(job="7")
    reported: list[str] = []
    clock = Clock(
        lambda: None,
        lambda: scene.run(experiment, losses=[0.5]),
        lambda: None,
        lambda: experiment.trial(1).write_end(1, {"outcome": "completed", "time": 2.0}),
    )
    one = scene.client.experiment(1)
    polling.wait(one, report=reported.append, clock=clock, sleep=clock.sleep)
    assert [text.partition("(")[2].partition(")")[0] for text in reported] == [
        "1 QUEUED",
        "1 RUNNING",
        "1 COMPLETED",
    ]


def test_the_log_of_a_trial_that_never_ran_is_what_its_job_printed(scene: Scene) -> None:
    """Followed or not; `activate` is no advice where the same line would fail again."""
    experiment = scene.experiment(job="7")
    printed = (
        "conda: not found\ndetslurm: job 7: slurm.setup, line 1, failed on n1 with exit status 1"
    )
    (experiment.jobs / "slurm-7.out").write_text(f"{printed}\n")
    scene.queue.put("7", "FAILED")
    trial = scene.client.trial(1)
    assert (trial.state, trial.row.run_count) == ("ERROR", 0)
    assert str(trial.row.end_reason).startswith("slurm.setup, line 1, failed on n1")
    assert "activate" not in str(trial.row.end_reason)
    assert trial.experiment.reason == trial.reason == trial.row.end_reason
    whole = list(trial.logs())
    assert whole[1:] == printed.splitlines() == list(trial.logs(follow=True))[1:]
    assert list(trial.logs(tail=1)) == whole[-1:] and list(trial.logs(head=1)) == whole[:1]
    assert list(trial.logs(search_text="conda")) == whole[1:2]


def test_the_reason_of_a_job_that_fails_before_its_run_is_what_it_printed(scene: Scene) -> None:
    """An array's elements print into one file: it tells of none of them once another has begun."""
    for job, begun in (("7", False), ("8", True)):
        experiment = scene.experiment(2, job=job)
        (experiment.jobs / f"slurm-{job}.out").write_text("exec: python3: not found\n\n")
        scene.queue.put(f"{job}_0", "FAILED", exit_code=127)
        if begun:
            scene.run(experiment, 1, ref=f"{job}_1", end="completed")
        reason = scene.client.experiment(experiment.id).trials()[0].reason or ""
        first, more = ("", "") if begun else ("exec: python3: not found; ", "once that is fixed, ")
        assert reason == (
            f"{first}job {job}_0 ended: FAILED, exit code 127, before its run began;"
            f" {more}`detslurm e activate {experiment.id}` queues it again"
        )
