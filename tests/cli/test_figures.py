"""A trial's metrics and its profiler's figures, as tables, CSV and JSON."""

from __future__ import annotations

import csv
import math

import pytest

from detslurm.store import RunLog, TrialDir, compact
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene


def record(trial: TrialDir, group: str, metrics: dict[str, object], time: float) -> None:
    with RunLog.open(trial.records_path(1)) as log:
        log.append({"t": "profile", "group": group, "metrics": {"n1": metrics}, "time": time})


@pytest.fixture
def trial(scene: Scene) -> TrialDir:
    """A trial that was restarted from step 2 and goes on, with metrics of every kind."""
    experiment = scene.experiment()
    trial = scene.run(experiment, losses=[0.9, 0.8, 5.0], end="preempted")
    resume = {"uuid": "c", "steps": 2}
    scene.run(experiment, losses=[0.7, math.nan], resume=resume)
    with RunLog.open(trial.records_path(2)) as log:
        metrics = {"batches": 4, "run": 7, "top": {"5": 0.25}, "note": "a, b", "sizes": [1, 2]}
        log.append({"t": "metrics", "group": "training", "steps": 4, "metrics": metrics,
                    "time": 0.5})  # fmt: skip
    return trial


def test_metrics_are_one_clean_curve(trial: TrialDir, detslurm: Detslurm) -> None:
    """A row for each group and step; what a later run repeated is there once."""
    said = detslurm("trial", "metrics", 1)
    rows = [[cell.strip() for cell in line.split("|")] for line in said.out.splitlines()]
    assert rows[0] == ["Group", "# of Batches", "Run", "loss", "run", "top.5", "note", "sizes"]
    assert rows[2:5] == [
        ["validation", "1", "1", "0.9", "", "", "", ""],
        ["validation", "2", "1", "0.8", "", "", "", ""],
        ["validation", "3", "2", "0.7", "", "", "", ""],
    ]
    assert ["training", "4", "2", "", "7", "0.25", "a, b", "[1, 2]"] in rows[5:]
    losses = detslurm("t", "metrics", 1, "--name", "loss", "--json").data
    assert [row["metrics"]["loss"] for row in losses] == [0.9, 0.8, 0.7, "NaN"]


def test_metrics_as_csv(trial: TrialDir, detslurm: Detslurm) -> None:
    """A column for each metric, whatever its name; numbers with all their digits."""
    said = detslurm("t", "metrics", 1, "--group", "training", "--csv")
    assert list(csv.DictReader(said.out.splitlines())) == [
        {"group": "training", "steps": "4", "run": "2", "time": "1970-01-01T00:00:00.500000Z",
         "batches": "4", "metrics.run": "7", "top.5": "0.25", "note": "a, b", "sizes": "[1, 2]"}
    ]  # fmt: skip
    lines = detslurm("t", "metrics", 1, "--name", "loss", "--csv").out.splitlines()
    assert lines[1:] == ["validation,1,1,,0.9", "validation,2,1,,0.8", "validation,3,2,,0.7",
                         "validation,4,2,,NaN"]  # fmt: skip


def test_rows_from_both_ends(trial: TrialDir, detslurm: Detslurm) -> None:
    """--head and --tail count rows after everything else has been chosen."""
    for end, steps in (("--head", [1, 2]), ("--tail", [3, 4])):
        rows = detslurm("t", "metrics", 1, "--group", "validation", end, 2, "--json").data
        assert [row["steps"] for row in rows] == steps
    assert detslurm("t", "metrics", 1, "--tail", 0, "--json").data == []
    headers = [detslurm("t", "metrics", 1, "--csv", *end).out.splitlines()[0]
               for end in ((), ("--tail", 1))]  # fmt: skip
    assert headers[0] == headers[1]


def test_a_compacted_experiment_prints_the_same(scene: Scene, detslurm: Detslurm) -> None:
    """From the file of columns as from the logs."""
    experiment = scene.experiment()
    scene.run(experiment, losses=[0.9, math.nan], end="completed")
    logged = detslurm("t", "metrics", 1, "--csv").out
    compact(experiment)
    assert detslurm("t", "metrics", 1, "--csv").out == logged
    columns = scene.client.trial(1).metrics("validation")
    assert list(columns.steps) == [1, 2] and columns.metrics["loss"][0] == 0.9


def test_what_is_not_there_is_explained(trial: TrialDir, detslurm: Detslurm) -> None:
    """On stderr."""
    said = detslurm("t", "metrics", 1, "--group", "validaton", "--json")
    assert said.status == 2
    assert "no group of metrics 'validaton'; there are training, validat" in said.err
    said = detslurm("t", "metrics", 1, "--name", "los", "--name", "loss")
    assert said.status == 2 and "no metric los; there are batches, loss, note" in said.err
    said = detslurm("t", "profile", 1, "--csv")
    assert (said.status, said.out) == (0, "time,run,node,device\n")
    assert "its profiler recorded nothing" in said.err and "core.profiler.on()" in said.err
    assert detslurm("t", "metrics", 1, "--head", 1, "--tail", 1).status == 2
    assert detslurm("t", "metrics", 1, "--csv", "--json").status == 2
    assert detslurm("t", "metrics", 2).status == 1


def test_the_profilers_figures(trial: TrialDir, detslurm: Detslurm) -> None:
    """One row for each report and node, and one for each of the node's disks and GPUs."""
    record(trial, "cpu", {"cpu_util_simple": 50.0}, 10.0)
    record(trial, "disk", {"disk_iops": 3.0, "/": {"disk_util": 80.0}}, 10.0)
    record(trial, "cpu", {"cpu_util_simple": 75.0}, 20.0)
    rows = detslurm("t", "profile", 1, "--json").data
    assert [(row["device"], row["metrics"]) for row in rows] == [
        (None, {"cpu_util_simple": 50.0, "disk_iops": 3.0}),
        ("/", {"disk_util": 80.0}),
        (None, {"cpu_util_simple": 75.0}),
    ]
    assert {(row["node"], row["run"], row["time"][:19]) for row in rows[:2]} == {
        ("n1", 1, "1970-01-01T00:00:10")
    }
    said = detslurm("t", "profile", 1, "--group", "cpu", "--tail", 1)
    headers = [cell.strip() for cell in said.out.splitlines()[0].split("|")]
    assert headers == ["Time", "Run", "Node", "Device", "cpu_util_simple"]
    assert [line.split()[-1] for line in said.out.splitlines()[2:]] == ["75"]
    assert detslurm("t", "profile", 1, "--name", "disk_util", "--csv").out.splitlines()[1:] == [
        "1970-01-01T00:00:10.000000Z,1,n1,/,80.0"
    ]
    with RunLog.open(trial.records_path(1)) as log:
        log.append({"t": "profile", "group": "cpu", "metrics": 5})  # of some other version
        log.append({"t": "note", "text": "profile"})
    assert detslurm("t", "profile", 1, "--json").data == rows
    said = detslurm("t", "profile", 1, "--group", "gpu")
    assert said.err == "The profiler recorded no gpu figures of trial 1.\n"
    assert len(said.out.splitlines()) == 2, "headers alone"
