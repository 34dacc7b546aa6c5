"""What commands print about experiments and trials."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from detslurm._base.contract import TEST_MODE
from detslurm.sdk import OrderBy, TrialSortBy
from detslurm.sdk.functions.packing import METRIC
from detslurm.slurm import JobInfo
from detslurm.store import ExperimentDir, RunLog
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import YAML, Scene
from tests.store.faults import refusing

TRACEBACK = ["0: Traceback (most recent call last):", "0: ValueError: the data is gone"]


@pytest.fixture
def failed(scene: Scene) -> Scene:
    """A finished experiment of two trials, of which the second failed."""
    experiment = scene.experiment(2, name="digits")
    scene.run(experiment, 0, losses=[0.5, 0.25], checkpoint="c1", ref="7_0", end="completed")
    scene.run(
        experiment, 1, losses=[0.75], checkpoint="c2", ref="7_1", end="error",
        reason="the code exited with 1 after 5 of 5 restarts", log=["begin", *TRACEBACK],
    )  # fmt: skip
    return scene


def test_list_shows_one_line_an_experiment(scene: Scene, detslurm: Detslurm) -> None:
    """Short forms work, limits count from the newest, and --json is the same list."""
    for name in ("one", "two", "three"):
        scene.experiment(name=name)
    result = detslurm("e", "ls")
    assert result.status == 0
    assert [line.split("|")[2].strip() for line in result.out.splitlines()[2:]] == [
        "one",
        "two",
        "three",
    ]
    newest = detslurm("experiment", "list", "--limit", 1, "--json").data
    assert [row["name"] for row in newest] == ["three"]
    middle = detslurm("experiment", "list", "--limit", 1, "--offset", 1, "--json").data
    assert [row["name"] for row in middle] == ["two"]
    assert detslurm("e", "list", "--offset", 9, "--json").data == []


def test_an_empty_store_lists_nothing(scene: Scene, detslurm: Detslurm) -> None:
    """Looking at nothing is no error."""
    assert scene.store.path.exists()
    assert detslurm("e", "list", "--json").data == []
    assert detslurm("e", "list").status == 0


def test_whatever_was_stored_is_shown(scene: Scene, detslurm: Detslurm) -> None:
    """Facts that nothing of ours would write break no command, and no terminal obeys them."""
    experiment = scene.experiment(name="\x1b]0;mine\x07")
    stored = {"name": 5, "labels": [None, 1, "\x1b[31m", ""], "description": ["a"], "notes": None}
    assert "\x1b" not in detslurm("e", "list").out
    for field, value in stored.items():
        experiment.append({"type": "set", "field": field, "value": value})
    assert detslurm("e", "list", "--json").data[0]["name"] == "5"
    assert detslurm("e", "list").status == 0
    result = detslurm("e", "describe", 1)
    assert result.status == 0 and "\x1b" not in result.out
    assert detslurm("e", "describe", 1, "--json").data["labels"] == ["1", "?[31m"]
    assert detslurm("e", "label", "add", 1, "new").status == 0
    experiment.append({"type": "set", "field": "labels", "value": 7})
    assert detslurm("e", "describe", 1, "--json").data["labels"] == ["7"]


def test_variables_in_the_stores_path(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the store expands them as what submits to it does, wherever they stand."""
    scene.experiment()
    monkeypatch.setenv("NAME", scene.root.name)
    monkeypatch.setenv("DETSLURM_ROOT", f"{scene.root.parent}/$NAME")
    assert len(detslurm("e", "list", "--json").data) == 1


def test_a_store_that_is_not_there_is_not_an_empty_one(
    scene: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which it is and who says so; only where nobody named one there may simply be none yet."""
    for words in ("e list", "e describe 7", "e kill 7", "t describe 7", "t kill 7"):
        result = detslurm(*words.split())
        assert result.status == 1, words
        assert f"there is no store at {scene.root} (by DETSLURM_ROOT)" in result.err
    assert not scene.root.exists()
    scene.root.write_text("")
    assert "is a file, not a store" in detslurm("e", "list").err
    monkeypatch.delenv("DETSLURM_ROOT")
    monkeypatch.setenv("HOME", str(tmp_path))
    result = detslurm("e", "list", "--json")
    assert (result.status, result.data) == (0, [])
    assert f"there is no store at {tmp_path / 'detslurm'} (the default)" in result.err
    profile = tmp_path / "site.yaml"
    profile.write_text("root: /nonexistent\n")
    monkeypatch.setenv("DETSLURM_SITE", str(profile))
    result = detslurm("e", "list")
    assert result.status == 1
    assert f"/nonexistent (by root in {profile})" in result.err


def test_describe_tells_why_a_trial_failed(failed: Scene, detslurm: Detslurm) -> None:
    """The reason and the traceback stand there; the best validation and checkpoints, too."""
    result = detslurm("e", "describe", 1)
    assert result.status == 0
    assert "the code exited with 1 after 5 of 5 restarts" in result.out
    assert "ValueError: the data is gone" in result.out
    assert "loss 0.25 @ 2" in result.out
    assert "c1 @ 2" in result.out
    assert "python3 train.py" in result.out
    assert "absolute paths" not in result.out


def test_a_failure_is_shown_in_what_no_terminal_obeys(scene: Scene, detslurm: Detslurm) -> None:
    """Neither its reason nor its log clear a screen or write to a clipboard, and megabytes in one
    line hide nothing else; JSON has the text as it is, cut as well."""
    log = ["0: \x1b[31mred\x1b[0m \x1b[2J\x1b]52;c;ZXZpbA==\x07 end", "0: " + "x" * 50_000]
    scene.run(scene.experiment(), log=log, end="error", reason="bad \x1b[2Jreason")
    for words in (("e", "describe", 1), ("t", "describe", 1)):
        result = detslurm(*words)
        assert "Trial 1 failed: bad ?[2Jreason" in result.out
        assert "  red ?[2J?]52;c;ZXZpbA==? end\n" in result.out
        assert len(result.out) < 5_000 and "xxx ..." in result.out
    found = detslurm("e", "describe", 1, "--json").data["trials"][0]["failure_excerpt"]
    assert "\x1b[2J" in found[0] and len(found[1]) < 2_100


@pytest.mark.parametrize("smaller", [True, False])
def test_what_diverged_is_nowhere_the_best(scene: Scene, detslurm: Detslurm, smaller: bool) -> None:
    """Whichever direction is better, and wherever trials or checkpoints are compared."""
    made = scene.experiment(3, about={"smaller_is_better": smaller})
    for index, loss in enumerate((-math.inf, 0.5, math.inf)):
        scene.run(made, index, losses=[loss], checkpoint=f"c{index}", end="completed")
    assert detslurm("e", "list", "--json").data[0]["best_trial"] == 2
    assert detslurm("e", "list-trials", 1, "--top", 3, "--json").data[0]["id"] == 2
    experiment = scene.client.experiment(1)
    assert experiment.top_checkpoint().uuid == "c1"
    order = OrderBy.ASCENDING if smaller else OrderBy.DESCENDING
    for sort_by in (TrialSortBy.SEARCHER_METRIC_VAL, TrialSortBy.BEST_VALIDATION_METRIC):
        assert experiment.list_trials(sort_by=sort_by, order_by=order)[0].id == 2
    plotted = detslurm("e", "plot", 1).out
    assert "a trial 2" in plotted


def test_describe_points_to_the_reason_of_a_wait(scene: Scene, detslurm: Detslurm) -> None:
    """While trials wait, and not because of a pause: then the state says it."""
    experiment = scene.experiment(2)
    scene.queue.put("7_0", "RUNNING")
    scene.run(experiment, 0, ref="7_0")
    assert "Waits : `detslurm job why 1`" in detslurm("e", "describe", 1).out
    assert detslurm("e", "pause", 1).status == 0
    assert "job why" not in detslurm("e", "describe", 1).out


def test_describe_shows_alerts(scene: Scene, detslurm: Detslurm) -> None:
    """Whatever their level: the log of a script may leave out those below a warning."""
    trial = scene.run(scene.experiment())
    with RunLog.open(trial.records_path(1)) as records:
        alert = {"t": "alert", "title": "Diverged", "description": "loss is NaN"}
        records.append({**alert, "level": "info", "time": 1.0})
    out = detslurm("t", "describe", 1).out
    assert "Alerts:" in out and "Diverged: loss is NaN" in out
    (shown,) = detslurm("t", "describe", 1, "--json").data["alerts"]
    assert (shown["run"], shown["level"], shown["description"]) == (1, "info", "loss is NaN")


@pytest.mark.parametrize(("path", "told"), [("data/train.csv", True), ("/data/train.csv", False)])
def test_describe_tells_where_relative_paths_lead(
    scene: Scene, detslurm: Detslurm, path: str, told: bool
) -> None:
    """Who finds no data in the job's copy of the code learns that it is a copy."""
    words = f"0: FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    scene.run(scene.experiment(1), 0, end="error", reason="it failed", log=[TRACEBACK[0], words])
    assert ("give data by absolute paths" in detslurm("t", "describe", 1).out) == told


def test_describe_as_json_is_complete_and_hides_secrets(failed: Scene, detslurm: Detslurm) -> None:
    """Scripts get all of it with times that sort, and no secret."""
    result = detslurm("e", "describe", 1, "--json")
    data = result.data
    assert data["state"] == "COMPLETED"
    assert data["started"] == "1970-01-01T00:16:40.000000Z"
    assert [t["state"] for t in data["trials"]] == ["COMPLETED", "ERROR"]
    assert data["trials"][1]["failure_excerpt"][-1] == "ValueError: the data is gone"
    assert data["trials"][0]["hparams"] == {"lr": 0.1, "i": 0}
    assert data["config"]["searcher"]["metric"] == "loss"
    assert "hush" not in result.out


def test_one_that_cant_be_read_hides_no_other(scene: Scene, detslurm: Detslurm) -> None:
    """What can be shown is, and the exit status says that it is not all."""
    scene.experiment(job="7")
    scene.experiment(job="8")
    closed = scene.store.experiment(1).log.name(2)
    with refusing(closed):
        data = detslurm("e", "describe", "1", "2", "--json")
        assert (data.status, [one["id"] for one in data.data]) == (1, [2])
        assert str(closed) in data.err
        listed = detslurm("e", "list", "--json")
        assert (listed.status, [one["id"] for one in listed.data]) == (0, [2])
        assert "left out" in listed.err and str(closed) in listed.err
        assert detslurm("e", "kill", 2).status == 0
    assert len(detslurm("e", "list", "--json").data) == 2


def test_several_experiments_are_described_with_one_query(scene: Scene, detslurm: Detslurm) -> None:
    """Ids come with commas or spaces."""
    scene.experiment(job="7")
    scene.experiment(job="8")
    scene.experiment(job="9")
    data = detslurm("e", "describe", "1,2", "3", "--json").data
    assert [one["id"] for one in data] == [1, 2, 3]
    assert scene.queue.queries == [["7", "8", "9"]]


def test_describe_shows_what_the_queue_says(scene: Scene, detslurm: Detslurm) -> None:
    """State and reason of the job stand beside the trial."""
    scene.experiment(job="7")
    scene.queue.put("7", "PENDING", "Resources")
    assert "7 PENDING: nodes are busy (Resources)" in detslurm("e", "describe", 1).out
    job = detslurm("t", "describe", 1, "--json").data["job"]
    assert (job["ref"], job["state"], job["reason"]) == ("7", "PENDING", "Resources")


def test_an_unknown_job_is_said_to_be_unknown(scene: Scene, detslurm: Detslurm) -> None:
    """With the way out."""
    scene.experiment(job="7")
    scene.queue.jobs.clear()
    result = detslurm("e", "describe", 1)
    assert "there is no record of how it ended" in result.out
    assert "detslurm e activate 1" in result.out


def test_a_dead_controller_costs_a_warning_on_stderr(scene: Scene, detslurm: Detslurm) -> None:
    """stdout stays clean JSON."""
    scene.experiment(job="7")
    scene.queue.down = True
    result = detslurm("e", "list", "--json")
    assert [row["state"] for row in result.data] == ["ACTIVE"]
    assert "does not answer" in result.err


def test_trial_describe_lists_runs_and_metrics(failed: Scene, detslurm: Detslurm) -> None:
    """Runs with their outcomes, the last and the best validation; all metrics on demand."""
    result = detslurm("trial", "describe", 1)
    assert "Best Validation : loss 0.25 @ 2" in result.out
    assert "Last Validation : loss=0.25 @ 2" in result.out
    result = detslurm("trial", "describe", 2)
    assert "failed" in result.out and "ValueError: the data is gone" in result.out
    data = detslurm("t", "describe", 1, "--metrics", "--json").data
    assert [row["metrics"] for row in data["metrics"]] == [{"loss": 0.5}, {"loss": 0.25}]
    assert [run["outcome"] for run in data["runs"]] == ["completed"]
    assert "metrics" not in detslurm("t", "describe", 1, "--json").data


def test_numbers_that_json_lacks_come_as_text(scene: Scene, detslurm: Detslurm) -> None:
    """A diverged run is still valid JSON."""
    scene.run(scene.experiment(), losses=[math.nan, math.inf], end="completed")
    rows = detslurm("t", "describe", 1, "--metrics", "--json").data["metrics"]
    assert [row["metrics"]["loss"] for row in rows] == ["NaN", "Infinity"]


def test_checkpoints_are_listed_and_ranked(failed: Scene, detslurm: Detslurm) -> None:
    """By trial or of all, the best first where asked for."""
    assert [c["uuid"] for c in detslurm("t", "lc", 2, "--json").data] == ["c2"]
    every = detslurm("e", "list-checkpoints", 1, "--json").data
    assert [(c["uuid"], c["validation_metric"]) for c in every] == [("c1", 0.25), ("c2", 0.75)]
    assert [c["uuid"] for c in detslurm("e", "lc", 1, "--best", 1, "--json").data] == ["c1"]
    assert "c1" in detslurm("e", "lc", 1).out
    shutil.rmtree(failed.root / "checkpoints" / "c1")  # by hand
    every = detslurm("e", "lc", 1, "--json").data
    assert [(c["uuid"], c["state"]) for c in every] == [("c1", "DELETED"), ("c2", "COMPLETED")]
    (described,) = detslurm("t", "describe", 1, "--json").data["checkpoints"]
    assert described["state"] == "DELETED"
    assert [c["uuid"] for c in detslurm("e", "lc", 1, "--best", 1, "--json").data] == ["c2"]


def test_the_configuration_is_read_once_for_all_checkpoints(
    failed: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once a trial or a checkpoint: it tells where they are."""
    asked: list[int] = []
    real = ExperimentDir.config

    def config(directory: ExperimentDir) -> dict[str, Any]:
        asked.append(directory.id)
        return real(directory)

    monkeypatch.setattr(ExperimentDir, "config", config)
    assert [c.uuid for c in failed.client.experiment(1).checkpoints()] == ["c1", "c2"]
    assert len(asked) == 1


def test_trials_are_listed(failed: Scene, detslurm: Detslurm) -> None:
    """By either group's command."""
    for command in (("e", "lt"), ("t", "list")):
        assert [t["id"] for t in detslurm(*command, 1, "--json").data] == [1, 2]
        assert "COMPLETED" in detslurm(*command, 1).out


def test_config_is_yaml_without_secrets(failed: Scene, detslurm: Detslurm) -> None:
    """What is printed reads back."""
    import yaml

    result = detslurm("e", "config", 1)
    assert yaml.safe_load(result.out) == detslurm("e", "config", 1, "--json").data
    assert "hush" not in result.out


def test_logs_come_from_both_ends_and_filtered(failed: Scene, detslurm: Detslurm) -> None:
    """`experiment logs` shows the first trial, `trial logs` any."""
    lines = detslurm("t", "logs", 2).out.splitlines()
    assert lines[0] == "[2026-11-21T04:46:00.000000Z] || begin"
    assert lines[1].endswith("[rank=0] || Traceback (most recent call last):")
    assert detslurm("t", "logs", 2, "--tail", 1).out.splitlines() == lines[-1:]
    assert detslurm("t", "logs", 2, "--head", 2).out.splitlines() == lines[:2]
    assert detslurm("t", "logs", 2, "--rank-id", 0).out.splitlines() == lines[1:]
    assert detslurm("e", "logs", 1).out == ""
    later = detslurm("t", "logs", 2, "--timestamp-after", "2026-11-21T04:46:00Z")
    assert later.out == ""
    assert detslurm("t", "logs", 2, "--since", "5000w").out.splitlines() == lines
    assert detslurm("t", "logs", 2, "--since", "1m").out == ""
    assert detslurm("t", "logs", 2, "--since", "2026-11-21T04:46:00Z").out == later.out
    wrong = detslurm("t", "logs", 2, "--since", "3 moons")
    assert wrong.status == 2 and "'3 moons' is not an age: 3s, 3min, 3h" in wrong.err
    ended = detslurm("t", "logs", 2, "-f")
    assert ended.out.splitlines() == lines
    assert "Trial log stream ended" in ended.err


def test_a_log_as_json_is_one_object_a_line(failed: Scene, detslurm: Detslurm) -> None:
    """With time, run, rank and text apart."""
    result = detslurm("t", "logs", 2, "--head", 1, "--json")
    assert json.loads(result.out) == {
        "time": "2026-11-21T04:46:00.000000Z",
        "run": 1,
        "rank": None,
        "text": "begin",
    }


def test_a_log_that_has_not_begun_says_why(scene: Scene, detslurm: Detslurm) -> None:
    """On stderr; the log itself is empty."""
    scene.experiment(job="7")
    result = detslurm("e", "logs", 1)
    assert result.out == ""
    assert "waits in the queue: other jobs come first (Priority)" in result.err


def test_wait_succeeds_only_for_completed(failed: Scene, detslurm: Detslurm) -> None:
    """The exit status is for scripts."""
    result = detslurm("e", "wait", 1, "--json")
    assert (result.status, result.data) == (0, {"id": 1, "state": "COMPLETED", "reason": None})


def test_the_reason_of_a_failure_is_the_same_everywhere(scene: Scene, detslurm: Detslurm) -> None:
    """The exception comes first, and stands before the settings."""
    why = "ValueError: the data is gone; the code exited with 1 after 5 of 5 restarts"
    scene.run(scene.experiment(), losses=[0.5], end="error", reason=why, log=["begin", *TRACEBACK])
    listed = detslurm("e", "list", "--columns", "id,reason", "--csv").out
    assert listed.splitlines()[1:] == [f"1,{why}"]
    result = detslurm("e", "wait", 1)
    assert (result.status, result.out) == (1, f"Experiment 1 is ERROR: {why}\n")
    failed = {"id": 1, "state": "ERROR", "reason": why}
    scene.run(scene.experiment(job="8"), ref="8", end="completed")
    both = detslurm("e", "wait", 1, 2, "--json")
    assert both.status == 1 and both.data == [
        failed,
        {**failed, "id": 2, "state": "COMPLETED", "reason": None},
    ]
    for more in ((), ("-f",)):
        assert f"trial 1 is ERROR: {why}\n" in detslurm("t", "logs", 1, *more).err
    for noun in ("e", "t"):
        lines = [line.strip() for line in detslurm(noun, "describe", 1).out.splitlines()]
        state = next(n for n, line in enumerate(lines) if line == "State : ERROR")
        assert lines[state + 1] == f"Reason : {why}"
    one = scene.client.experiment(1)
    (trial,) = one.trials()
    assert one.message == one.reason == trial.reason == why
    for shown in (one, trial):
        assert f"reason={why!r})" in repr(shown)
        assert f"<li>State: ERROR (0%)</li><li>Why: {why}</li>" in shown._repr_html_()


def test_describe_says_that_no_validation_has_the_metric(scene: Scene, detslurm: Detslurm) -> None:
    """A misspelt metric makes no trial fail: it has to be told."""
    text = YAML.replace("metric: loss", "metric: acc")
    scene.run(scene.experiment(text=text, about={"metric": "acc"}), losses=[0.5], end="completed")
    result = detslurm("e", "describe", 1).out
    assert result.endswith("No validation has the searcher's metric acc: only loss.\n")
    scene.run(scene.experiment(job="8"), losses=[0.5], ref="8", end="completed")
    assert "No validation has" not in detslurm("e", "describe", 2).out
    by_hand = scene.experiment(job="9", about={"metric": "acc", "managed": False})
    scene.run(by_hand, losses=[0.5], ref="9", end="completed")
    result = detslurm("e", "describe", 3).out
    assert "No validation has" not in result and "Searcher" not in result
    text_only = scene.experiment(job="10")
    scene.run(text_only, losses=["low"], ref="10", end="completed")  # type: ignore[list-item]
    assert "loss is not a number in the last validations" in detslurm("e", "describe", 4).out


def test_describe_says_that_no_trial_has_reported_the_metric(
    scene: Scene, detslurm: Detslurm
) -> None:
    """A script that ends well and reports nothing looks like a success otherwise; what went wrong
    has another reason, and functions and short trainings need not report."""
    word = "No trial has reported"
    scene.run(scene.experiment(), end="completed")
    assert detslurm("e", "describe", 1).out.endswith(f"\n\n{word} loss.\n")
    assert f"{word} loss." in detslurm("e", "wait", 1).err
    scene.run(scene.experiment(job="8"), ref="8")
    assert word not in detslurm("e", "describe", 2).out
    scene.run(scene.experiment(job="9"), ref="9", end="error")
    assert word not in detslurm("e", "describe", 3).out
    scene.run(scene.experiment(job="10", about={"managed": False}), ref="10", end="completed")
    assert word not in detslurm("e", "describe", 4).out
    for number, metric in ((5, METRIC), (6, "none")):
        job = str(6 + number)
        scene.run(scene.experiment(job=job, about={"metric": metric}), ref=job, end="completed")
        assert word not in detslurm("e", "describe", number).out
    short = f"{YAML}environment: {{environment_variables: [{TEST_MODE}=1]}}\n"
    scene.run(scene.experiment(job="13", text=short), ref="13", end="completed")
    assert word not in detslurm("e", "describe", 7).out
    recorded = scene.experiment(job="14", text=f"{YAML}record: auto\n")
    with RunLog.open(scene.run(recorded, ref="14", end="completed").records_path(1)) as records:
        metrics = {"val_acc": 0.5, "lr": 0.1}
        records.append({"t": "metrics", "group": "training", "steps": 1, "metrics": metrics})
    assert f"{word} loss; recorded were lr, val_acc." in detslurm("e", "describe", 8).out


def test_describe_names_what_was_deleted_with_the_code(scene: Scene, detslurm: Detslurm) -> None:
    """A script that writes beside itself loses that; both commands say how to keep it."""
    scene.run(scene.experiment(), losses=[0.5], end="completed", deleted="best.pt, out/")
    for command in ("experiment", "trial"):
        shown = detslurm(command, "describe", 1).out
        assert "Deleted : best.pt, out/, written by trial 1 beside the code" in shown
        assert "To keep files, save them in a checkpoint or under an absolute path." in shown
    assert detslurm("trial", "describe", 1, "--json").data["runs"][0]["deleted"] == "best.pt, out/"


def test_a_run_on_several_nodes_names_them_all(scene: Scene, detslurm: Detslurm) -> None:
    """As Slurm does; a run on one node has the name that it has there."""
    experiment = scene.experiment()
    trial = experiment.trial(1)
    for nodes in (["n1", "n2", "n4"], ["n1"]):
        job = {"cluster": "slurm", "ref": "7", "nodes": nodes}
        trial.open_run({"hparams": {}, "seed": 1, "time": 1.0, "host": "n1.site", "job": job})
    hosts = [line.split("|")[2].strip() for line in detslurm("t", "describe", 1).out.splitlines()
             if line.split("|")[0].strip() in ("1", "2")]  # fmt: skip
    assert hosts == ["n[1-2,4]", "n1.site"]


def test_nothing_of_a_canceled_search_runs(scene: Scene, detslurm: Detslurm) -> None:
    """Its log ends in the middle: what was at work there is none any more."""
    experiment, log = scene.search()
    scene.works(experiment, log, "7_0", end="canceled")
    result = detslurm("e", "describe", 1).out
    assert "1 running" in result and "No trial has reported" not in result
    detslurm("e", "kill", 1)
    result = detslurm("e", "describe", 1).out
    assert "State : CANCELED" in result and "Search : 3 trials created\n" in result
    assert result.endswith("No trial has reported loss: the search had nothing to compare.\n")


def test_invalid_samples_are_counted(scene: Scene, detslurm: Detslurm) -> None:
    """Their trials are completed: that alone would look like results."""
    experiment, log = scene.search()
    index = scene.works(experiment, log, "7_0", end="completed")
    log.commit([{"e": "run_ended", "trial": index, "worker": "7_0", "outcome": "invalid_hp"}])
    assert "1 over (1 with invalid hyperparameters)\n" in detslurm("e", "describe", 1).out


def test_a_search_without_a_valid_sample_is_an_error(scene: Scene, detslurm: Detslurm) -> None:
    """It is reported why nothing was trained, and each trial is marked."""
    experiment = scene.experiment(trials=2)
    for index in range(2):
        scene.run(experiment, index, end="invalid_hp", reason="too\x1b[2J wide")
    result = detslurm("e", "describe", 1).out
    assert "State : ERROR" in result and "COMPLETED (invalid)" in result
    assert "valid hyperparameters, nothing was trained; the last one: too?[2J wide" in result
    assert detslurm("e", "wait", 1).status == 1


def test_describe_shows_where_a_search_stands(scene: Scene, detslurm: Detslurm) -> None:
    """Brackets and rungs with counts and the best, in text and as data; a trial has its target."""
    experiment, log = scene.search()
    index = scene.works(experiment, log, "7_0", losses=[0.25], end="out_of_ops")
    log.commit([{"e": "validated", "trial": index, "length": 3, "metric": 0.25}])
    result = detslurm("e", "describe", 1)
    assert "4 trials created: 3 waiting, 1 running, 0 paused, 0 over" in result.out
    assert "Bracket | Rung | Batches | Results | Outstanding | Best | Trial ID" in result.out
    assert "      0 |    0 |       3 |       1 |           3 | 0.25 |        1" in result.out
    data = detslurm("e", "describe", 1, "--json").data["search"]
    assert data["trials"]["waiting"] == 3
    (bracket,) = data["brackets"]
    assert [rung["units"] for rung in bracket["rungs"]] == [3, 9]
    assert bracket["rungs"][0]["best_trial"] == 1
    described = detslurm("t", "describe", 1).out
    assert "asked for 3 batches" in described and "left to the search" in described
    assert "out_of_ops" not in described
    found = detslurm("t", "describe", 1, "--json").data["search"]
    assert (found["target_length"], found["rung"], found["worker"]) == (3, 0, "7_0")
    assert detslurm("e", "list-trials", 1, "--json").data[0]["search"]["status"] == "assigned"


def test_a_standby_worker_is_described_as_such(scene: Scene, detslurm: Detslurm) -> None:
    """Slurm's word for why it waits is none for what it is there for."""
    from detslurm.cli.experiment.description import workers_text

    jobs = [JobInfo("7", "RUNNING"), JobInfo("8", "PENDING", reason="Dependency")]
    assert workers_text(jobs) == "1 run, 1 wait: standby, which starts if all others end"


def test_a_search_that_nobody_works_for_says_what_to_do(scene: Scene, detslurm: Detslurm) -> None:
    """With evidence it is an error, and the message names the command that goes on."""
    scene.search()
    for ref in ("7_0", "7_1", "7_2"):
        scene.queue.put(ref, "NODE_FAIL")
    assert "`detslurm e activate` submits new ones" in detslurm("e", "describe", 1).out
    assert detslurm("e", "list", "--json").data[0]["state"] == "ERROR"


def test_a_checkpoint_is_downloaded(scene: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """The one that is meant, to where it is wanted, and never over something else."""
    experiment = scene.experiment()
    for run, (uuid, losses) in enumerate({"good": [3.0, 1.0], "newer": [5.0]}.items()):
        resume = {"uuid": "good", "steps": 2} if run else None
        scene.run(experiment, losses=losses, checkpoint=uuid, resume=resume, end="restart")
    for uuid in ("good", "newer"):
        (scene.root / "checkpoints" / uuid / "weights").write_text(uuid[:5].rjust(5))
    for words, uuid in (
        (["--best"], "good"),
        (["--latest"], "newer"),
        (["--uuid", "good"], "good"),
    ):
        target = tmp_path / words[0]
        result = detslurm("t", "download", 1, *words, "-o", target)
        assert result.out == f"{target}\n", result.err
        assert (target / "weights").read_text().strip() == uuid
        again = detslurm("t", "download", 1, *words, "-o", target)
        assert (again.status, again.out) == (0, f"{target}\n")  # all of it is there
        (target / "weights").write_text("of something else")
        assert "exists already" in detslurm("t", "download", 1, *words, "-o", target).err
    assert "has no checkpoint x" in detslurm("t", "download", 1, "--uuid", "x").err
    assert detslurm("t", "download", 1).status == 2


def test_a_description_as_files(failed: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """Experiments, trials, and what each of them reported and saved, for a spreadsheet."""
    done = detslurm("e", "describe", 1, "--outdir", tmp_path / "tables")
    names = ["experiments", "trials", "workloads"]
    assert done.out.split() == [w for n in names for w in ("Wrote", f"{tmp_path}/tables/{n}.csv")]
    rows = {}
    for name in names:
        with (tmp_path / "tables" / f"{name}.csv").open(newline="") as file:
            rows[name] = list(csv.DictReader(file))
    assert rows["experiments"][0]["name"] == "digits"
    trials = json.loads(detslurm("e", "describe", 1, "--json").out)["data"]["trials"]
    assert [row["state"] for row in rows["trials"]] == [trial["state"] for trial in trials]
    reported = [row for row in rows["workloads"] if row["kind"] == "validation"]
    assert reported and all(float(row["validation.loss"]) for row in reported)
