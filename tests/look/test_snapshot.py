"""A snapshot says what the store holds, and what of it can't be read."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.latency import counted
from detslurm.look.document import ExperimentPart, Snapshot, TrialPart
from detslurm.look.live import LiveStore
from detslurm.look.snapshot import encode, snapshot
from detslurm.store import RunLog, TrialDir, compact
from tests.sdk.scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "store")


def taken(scene: Scene, **options: Any) -> ExperimentPart:
    """The snapshot of experiment 1, as it is after being written and read."""
    made = snapshot([scene.client.experiment(1)], **options)
    (read,) = msgspec.json.decode(encode(made), type=Snapshot).experiments
    assert read == made.experiments[0]
    return read


def report(trial: TrialDir, run: int, *records: dict[str, Any]) -> None:
    """Metrics in a run's log; each is group, steps and values."""
    with RunLog.open(trial.records_path(run)) as log:
        for one in records:
            log.append({"t": "metrics", **one})


def training(steps: int, time: float | None = None, **metrics: Any) -> dict[str, Any]:
    return {"group": "training", "steps": steps, "metrics": metrics, "time": time}


def curve(trial: TrialPart, name: str) -> list[tuple[int, Any]]:
    """Steps and values of one curve."""
    (found,) = [c for c in trial.curves if f"{c.group}/{c.metric}" == name]
    return list(zip(found.steps, found.values, strict=True))


def test_an_experiment_and_its_trials(scene: Scene) -> None:
    """What the experiment's and the trial's own pages say is in the document."""
    scene.experiment(2)
    scene.run(scene.store.experiment(1), losses=(0.5, 0.25, 0.75), checkpoint="c-1",
              end="completed")  # fmt: skip
    part = taken(scene)
    assert (part.name, part.owner, part.metric, part.searcher) == ("test", "alice", "loss", "grid")
    assert (part.unit, part.trial_count, part.problems) == (None, 2, [])
    assert part.config["data"]["secrets"] == {"token": "********"}
    first, second = part.trials
    assert (first.state, second.state) == ("COMPLETED", "QUEUED")
    assert (first.hparams, first.steps) == ({"lr": 0.1, "i": 0}, 3)
    assert (first.best, first.best_steps, first.latest) == (0.25, 2, 0.75)
    assert curve(first, "validation/loss") == [(1, 0.5), (2, 0.25), (3, 0.75)]
    assert first.summary == {"validation/loss": 0.75}
    (saved,) = first.checkpoints
    assert (saved.uuid, saved.steps, saved.size) == ("c-1", 3, 5)
    assert saved.path == str(scene.checkpoints / "c-1")
    assert saved.metrics == {"loss": 0.75}
    assert second == TrialPart(id=second.id, state="QUEUED")


def test_runs_and_the_clean_curve(scene: Scene) -> None:
    """Two runs with their waits; what the second repeats counts once."""
    made = scene.experiment(1)
    created = made.created().time or 0.0
    trial = made.trial(1)
    job = {"cluster": "slurm", "ref": "7", "job_id": "7", "nodes": ["n1", "n2"]}
    trial.open_run({"hparams": {"a": {"b": 1}}, "time": created + 50, "job": job})
    report(trial, 1, *(training(n, 10.0 * n, loss=float(n), acc={"top": 0.1}) for n in range(1, 9)))
    trial.write_end(1, {"outcome": "preempted", "reason": "wanted", "time": created + 100})
    again = {**job, "restart_count": 1}
    trial.open_run({"hparams": {"a": {"b": 1}}, "time": created + 170, "job": again,
                    "resume": {"uuid": "c", "steps": 4}})  # fmt: skip
    report(trial, 2, training(5, loss=math.nan), training(6, loss=math.inf))
    scene.queue.put("7", "RUNNING")
    (part,) = taken(scene).trials
    assert part.hparams == {"a.b": 1}
    one, two = part.runs
    assert (one.outcome, one.nodes, one.job, one.steps) == ("preempted", ["n1", "n2"], "7", 8)
    assert (one.started, one.ended) == (created + 50, created + 100)
    assert (two.queued, two.started) == (created + 100, created + 170)
    assert (two.resumed_steps, two.outcome, two.ended) == (4, None, None)
    assert curve(part, "training/loss") == [
        (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, None), (6, "inf")
    ]  # fmt: skip
    assert [steps for steps, _ in curve(part, "training/acc.top")] == [1, 2, 3, 4]


def test_a_failed_trial_shows_the_end_of_its_log(scene: Scene) -> None:
    """The last lines, without the secrets of the configuration; of others when asked for."""
    made = scene.experiment(2)
    lines = [f"0: line {n}" for n in range(9)] + ["0: the token is hush-hush"]
    scene.run(made, 0, end="error", log=lines)
    scene.run(made, 1, end="completed", log=["0: fine"])
    failed, fine = taken(scene, log_lines=3).trials
    assert [line.partition("|| ")[2] for line in failed.log_tail] == [
        "line 7", "line 8", "the token is ********"
    ]  # fmt: skip
    assert fine.log_tail == []
    (asked,) = taken(scene, trials=[2]).trials
    assert asked.log_tail[0].endswith("fine")


def test_code_is_listed_on_request(scene: Scene) -> None:
    """Small text files alone, and no link is followed."""
    made = scene.experiment(1)
    (made.code / "weights.bin").write_bytes(b"\xff\0")
    (made.code / "big.py").write_text("#" * 100_000)
    (made.code / "sub").mkdir()
    (made.code / "sub" / "net.py").write_text("x = 1\n")
    (made.code / "link").symlink_to("/etc/passwd")
    os.mkfifo(made.code / "pipe.py")
    (made.code / ".git").mkdir()
    (made.code / ".git" / "config").write_text("secret")
    assert taken(scene).code == {}
    code = taken(scene, code=True).code
    assert code["sub/net.py"] == "x = 1\n"
    assert "train.py" in code
    assert not {"weights.bin", "big.py", "link", "pipe.py", ".git/config"} & code.keys()


def test_a_search_has_rungs(scene: Scene) -> None:
    """Rungs of the search, and how far each of its trials came."""
    made, log = scene.search(workers=1)
    index = scene.works(made, log, "7", losses=[0.5, 0.4, 0.3])
    units = log.state.brackets[0].rungs[0].units
    log.commit([{"e": "validated", "trial": index, "metric": 0.3, "length": units}])
    part = taken(scene)
    lowest = part.rungs[0]
    assert (lowest.bracket, lowest.rung, lowest.trials, lowest.units) == (0, 0, 1, units)
    assert (lowest.best, lowest.best_trial) == (0.3, part.trials[0].id)
    assert (part.trials[0].bracket, part.trials[0].rung) == (0, 0)
    assert (part.searcher, part.unit) == ("async_halving", "batches")


def test_what_cant_be_read_is_a_problem(scene: Scene) -> None:
    """Broken logs, a missing configuration, a directory in place of a file: a page all the same."""
    made = scene.experiment(3)
    for index in range(3):
        scene.run(made, index, losses=[0.5], end="error", log=["0: out"])
    first = made.trial(1)
    first.records_path(1).write_bytes(b"\0\xffgarbage\n" * 3)
    log = made.trial(2).log_path(1)
    log.unlink()
    log.mkdir()
    experiment = scene.client.experiment(1)
    (made.path / "config.json").write_text("{")
    (part,) = snapshot([experiment]).experiments
    assert len(part.trials) == 3
    assert part.trials[2].curves[0].values == [0.5]
    text = "\n".join(part.problems)
    assert "its configuration can't be read" in text
    assert "run-1.jsonl, byte 0" in text


def test_texts_that_are_no_unicode(scene: Scene) -> None:
    """Names and lines of any bytes make a document that every reader of JSON takes."""
    made = scene.experiment(1, name="a\udcffb")
    scene.run(made, end="error", log=["0: </script>"])
    trial = made.trial(1)
    with trial.log_path(1).open("ab") as file:
        file.write(b"[2026-11-21T04:46:00.000000Z] [rank=0] || \xff\xfe\x00\n")
    report(trial, 1, training(1, **{"l\udcff": 1.0}))
    document = json.loads(encode(snapshot([scene.client.experiment(1)])))
    (part,) = document["experiments"]
    assert "\\udcff" in part["name"]
    assert len(part["trials"][0]["log_tail"]) == 2


def test_a_live_view_reads_no_log_twice(scene: Scene) -> None:
    """Neither for curves nor for runs and checkpoints; of a new store at the same place all."""
    trial = scene.run(scene.experiment(2), losses=[0.5] * 200, ref="7_0")
    scene.queue.put("7_0", "RUNNING")
    store = LiveStore(lambda: scene.client)

    def look() -> TrialPart:
        (part,) = store.snapshot([1]).experiments
        assert part.problems == []
        return part.trials[0]

    assert look().steps == 200
    report(trial, 1, {"group": "validation", "steps": 201, "metrics": {"loss": 0.25}})
    with trial.records_path(1).open("r+b") as log:
        log.write(b"what was read before is not read again")
    again = look()
    assert (again.steps, again.best, again.curves[0].count) == (201, 0.25, 201)
    trial.write_end(1, {"outcome": "completed", "time": 2000.0})
    over = look()
    assert (over.state, over.steps, over.curves) == ("COMPLETED", 201, again.curves)
    shutil.rmtree(scene.root)
    scene.run(scene.experiment(2), losses=[0.125] * 300, ref="8")
    other = look()
    assert (other.steps, other.best, other.curves[0].count) == (300, 0.125, 300)
    assert store._read.points == 300


def test_many_trials_that_wait_cost_listings(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document has them as if each had been asked for, also one that has just begun."""
    made = scene.experiment(250)
    for begun in (0, 100):
        scene.queue.put(f"7_{begun}", "RUNNING")
    scene.run(made, 0, losses=[0.5], ref="7_0")
    whole = scene.client.experiment(1)
    calls = counted(lambda: taken(scene)).total()
    assert calls < 450, "two times a listing of a hundred directories, and a trial that runs"
    scene.run(made, 100, losses=[0.25], ref="7_100")  # since the experiment was read
    (later,) = snapshot([whole]).experiments
    assert [trial.id for trial in later.trials if trial.state == "RUNNING"] == [1, 101]
    found = taken(scene).trials
    monkeypatch.setattr("detslurm.sdk.experiments.snapshot.started_trials", lambda *about: None)
    pairs = zip(found, taken(scene).trials, strict=True)
    assert [one.id for one, by_name in pairs if one != by_name] == [1, 101], "time has passed"


def test_a_live_view_does_not_grow_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past a number of points everything is forgotten, and read again; past a number of trials
    those that the last snapshot did not ask for."""
    scene.run(scene.experiment(2), losses=[0.5] * 200, ref="7_0")
    scene.queue.put("7_0", "RUNNING")
    monkeypatch.setattr("detslurm.look.snapshot.MOST_POINTS", 100)
    live = LiveStore(lambda: scene.client)
    for _ in range(2):
        (part,) = live.snapshot([1]).experiments
        assert part.trials[0].curves[0].count == 200
        assert live._read.metrics == {}
    monkeypatch.undo()
    monkeypatch.setattr("detslurm.look.snapshot.MOST_TRIALS", 1)
    monkeypatch.setattr("detslurm.look.live.MOST_TRIALS", 1)
    scene.run(scene.experiment(3), losses=[0.5] * 10, ref="8_0")
    for wanted, remembered in ((1, {1, 2}), (2, {3, 4, 5}), (2, {3, 4, 5})):
        live.snapshot([wanted])
        logs = set[int]().union(*(one.logs for one in live._store.unfinished))
        assert logs == remembered
    assert live._read.points == 10


def test_progress_and_choice(scene: Scene) -> None:
    """Each trial that was read is counted; curves can be left out."""
    scene.experiment(3)
    steps: list[tuple[int, int]] = []
    part = taken(scene, trials=[1, 3], curves=False, progress=lambda *a: steps.append(a))
    assert [trial.id for trial in part.trials] == [1, 3]
    assert part.trial_count == 3
    assert steps == [(1, 2), (2, 2)]
    assert encode(snapshot([])).startswith(b'{"version":2')


def test_the_profiler_s_figures(scene: Scene) -> None:
    """A curve for each figure of each node and device, by seconds since the first."""
    made = scene.experiment(1)
    trial = scene.run(made)
    with RunLog.open(trial.records_path(1)) as log:
        for when in (100.0, 115.5):
            log.append({"t": "profile", "group": "gpu", "time": when,
                        "metrics": {"n1": {"GPU-1": {"gpu_util": when / 2}}}})  # fmt: skip
    trial.write_end(1, {"outcome": "completed", "time": 2000.0})
    for compacted in (False, True):
        if compacted:
            compact(made)
        (figure,) = taken(scene).trials[0].profile
        assert (figure.group, figure.metric) == ("gpu", "n1.GPU-1.gpu_util")
        assert (figure.steps, figure.values) == ([0, 15], [50.0, 57.75])
        assert figure.times == [100.0, 115.5]


def test_compacted_metrics_say_the_same(scene: Scene) -> None:
    """From the compacted file or from the logs: one document."""
    made = scene.experiment(2)
    for index in range(2):
        trial = scene.run(made, index, losses=[0.5, math.nan, 0.25], checkpoint=f"c-{index}")
        report(trial, 1, *(training(n, 5.0 * n, loss=1 / n, acc={"top": n}) for n in range(1, 50)))
        trial.write_end(1, {"outcome": "completed", "time": 2000.0})
    logged = taken(scene)
    compact(made)
    assert taken(scene) == logged
    for name in ("metrics.h5", "trials.json"):
        whole = (made.path / name).read_bytes()
        (made.path / name).write_bytes(whole[: len(whole) // 2])
        assert taken(scene).trials == logged.trials


def test_an_experiment_s_own_snapshot(scene: Scene) -> None:
    """The document as plain data: the same as JSON has, of the experiment as it is now."""
    made = scene.experiment(2)
    experiment = scene.client.experiment(1)
    for index in range(2):
        scene.run(made, index, losses=[0.5, math.nan, math.inf], end="completed")
    data = experiment.snapshot(trials=[2], code=True)
    assert json.loads(json.dumps(data)) == data
    written = json.loads(encode(snapshot([experiment], trials=[2], code=True)))
    assert {**data, "taken": 0} == {**written, "taken": 0}
    (part,) = data["experiments"]
    assert [trial["state"] for trial in part["trials"]] == ["COMPLETED"]
    assert part["trials"][0]["curves"][0]["values"] == [0.5, None, "inf"]
    assert "curves" not in experiment.snapshot(curves=False)["experiments"][0]["trials"][0]


def test_a_pipe_keeps_nobody_waiting(scene: Scene) -> None:
    """A named pipe in the place of any file of a finished experiment is as none, or a problem."""
    made = scene.experiment(1)
    trial = scene.run(made, losses=[0.5, 0.25], end="completed", log=["0: out"])
    compact(made)
    for path in (made.metrics_path, made.path / "trials.json"):
        path.unlink()
        os.mkfifo(path)
    (part,) = taken(scene).trials
    assert (part.state, part.curves[0].values) == ("COMPLETED", [0.5, 0.25])
    for path in (trial.records_path(1), trial.log_path(1)):
        path.unlink()
        os.mkfifo(path)
    assert [one.id for one in taken(scene).trials] == [1]


def test_integers_of_any_size_keep_their_digits(scene: Scene) -> None:
    """As texts where a double would round them, in hyperparameters and in the configuration."""
    made = scene.experiment(1)
    seeds = {"a": 2**53 - 1, "b": 2**53 + 1, "c": [-(2**64)], "d": True}
    made.trial(1).open_run({"hparams": seeds, "time": 1.0, "host": "n1"})
    expected = {
        "a": 2**53 - 1, "b": "9007199254740993", "c": ["-18446744073709551616"], "d": True
    }  # fmt: skip
    (part,) = taken(scene).trials
    assert part.hparams == expected


def test_steps_of_any_size_are_numbers(scene: Scene) -> None:
    """As text there are only integers that users chose, also where a name is no Unicode."""
    steps = 1 << 60
    scene.run(made := scene.experiment(1, name="a\udcffb"))
    report(made.trial(1), 1, training(steps, loss=1.0))
    experiment = scene.client.experiment(1)
    for data in (experiment.snapshot(), json.loads(encode(snapshot([experiment])))):
        (trial,) = data["experiments"][0]["trials"]
        assert (trial["steps"], trial["curves"][0]["steps"]) == (steps, [steps])
