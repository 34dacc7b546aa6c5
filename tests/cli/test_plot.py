"""`detslurm experiment plot`: which curves, and how they come out of a pipe and of a terminal."""

from __future__ import annotations

import csv
import math

import pytest

from detslurm.store import RunLog, compact
from tests.cli.conftest import Detslurm
from tests.cli.terminals import on_terminal, without_colors
from tests.sdk.scenes import Scene


@pytest.fixture
def runs(scene: Scene) -> Scene:
    """Six trials, the fourth being the best and the third resumed at 4; one that waits."""
    experiment = scene.experiment(7, name="resnet \x1b[2J sweep")
    for index in range(6):
        factor = 1.0 if index == 3 else 2.0 + index
        losses = [factor / n for n in range(1, 11)]
        if index == 2:
            scene.run(experiment, 2, losses=losses[:6], end="preempted")
            scene.run(experiment, 2, losses=losses[4:], resume={"uuid": "c", "steps": 4})
        else:
            scene.run(experiment, index, losses=losses, end="completed")
    with RunLog.open(experiment.trial(1).records_path(1)) as log:
        for steps in (1, 2):
            metrics = {"lr": 0.5 / steps, "top": {"5": 0.25}, "note": "x"}
            log.append({"t": "metrics", "group": "training", "steps": steps, "metrics": metrics})
    return scene


def test_the_best_trials_are_plotted_with_a_legend(runs: Scene, detslurm: Detslurm) -> None:
    """By the searcher's metric, best first; 80 columns and no colours in a pipe."""
    said = detslurm("experiment", "plot", 1)
    title, *rest = said.out.splitlines()
    assert title == "validation loss by steps: experiment 1 resnet ?[2J sweep, 5 of 6 trials"
    assert [line.split("  ")[0] for line in rest[-5:]] == [
        "a trial 4", "b trial 1", "c trial 2", "d trial 3", "e trial 5"
    ]  # fmt: skip
    assert rest[-5] == "a trial 4  COMPLETED  0.1 @ 10  i=3"
    assert rest[-2] == "d trial 3  RUNNING  0.4 @ 10  i=2"
    assert len(rest) == 25 and max(map(len, rest)) == 80
    assert "\x1b" not in said.out and (said.status, said.err) == (0, "")
    assert sum(line.count("◆") for line in rest) == 1


def test_integers_that_no_float_holds_are_infinite(runs: Scene, detslurm: Detslurm) -> None:
    """They cost no plot."""
    with RunLog.open(runs.store.find_trial(2).records_path(1)) as log:
        for steps, n in ((1, -(10**400)), (2, 3)):
            log.append({"t": "metrics", "group": "training", "steps": steps, "metrics": {"n": n}})
    said = detslurm("experiment", "plot", 1, "n", "-t", 2, "--csv")
    assert said.out.splitlines() == ["trial,steps,n", "2,1,-Infinity", "2,2,3.0"]
    assert detslurm("experiment", "plot", 1, "n", "-t", 2).status == 0


def test_points_for_programs(runs: Scene, detslurm: Detslurm) -> None:
    """--json, --csv and --table have all points of the curves; of a step that was repeated one."""
    data = detslurm("e", "plot", 1, "-t", 3, "--json").data
    assert (data["experiment"], data["group"], data["metric"]) == (1, "validation", "loss")
    (trial,) = data["trials"]
    assert trial["steps"] == list(range(1, 11)) and trial["resumed_steps"] == [4]
    assert trial["values"] == [4.0 / n for n in range(1, 11)]
    assert (trial["id"], trial["hparams"]) == (3, {"lr": 0.1, "i": 2})
    said = detslurm("e", "plot", 1, "--trials", 2, "--csv")
    rows = list(csv.reader(said.out.splitlines()))
    assert rows[:2] == [["trial", "steps", "loss"], ["4", "1", "1.0"]] and len(rows) == 21
    first = detslurm("e", "plot", 1, "--table").out.splitlines()[2]
    assert [cell.strip() for cell in first.split("|")] == ["4", "1", "1"]


def test_a_metric_of_another_group_is_found(runs: Scene, detslurm: Detslurm) -> None:
    """By its name alone, and where the experiment is compacted."""
    assert detslurm("e", "plot", 1, "lr", "--json").data["group"] == "training"
    nested = detslurm("e", "plot", 1, "top.5", "--group", "training", "--json").data
    assert nested["trials"][0]["values"] == [0.25, 0.25]
    scene = Scene(runs.root)
    scene.run(runs.store.experiment(1), 2, resume={"uuid": "c", "steps": 10}, end="completed")
    scene.run(runs.store.experiment(1), 6, losses=[math.nan, 7.0], end="completed")
    before = detslurm("e", "plot", 1, "--csv").out
    compact(runs.store.experiment(1))
    assert detslurm("e", "plot", 1, "--csv").out == before


def test_a_trial_without_a_number_has_its_line_in_the_legend(
    runs: Scene, detslurm: Detslurm
) -> None:
    """It has diverged from the beginning on: the plot is of the others."""
    runs.run(runs.store.experiment(1), 6, losses=[math.nan, math.nan], end="completed")
    shown = detslurm("e", "plot", 1, "-t", 7, "-t", 1)
    assert shown.status == 0 and "trial 7  COMPLETED  nan @ 2" in shown.out, shown


def test_reports_of_other_metrics_are_no_gaps(scene: Scene, detslurm: Detslurm) -> None:
    """What one report in two has is a line, and NaN stays one; compacted or not."""
    experiment = scene.experiment(1)
    trial = scene.run(experiment, losses=[1.0])
    with RunLog.open(trial.records_path(1)) as log:
        for steps in range(2, 10):
            value = math.nan if steps == 4 else float(steps)
            metrics = {"norm": value} if steps % 2 == 0 else {"lr": 0.1}
            log.append({"t": "metrics", "group": "training", "steps": steps, "metrics": metrics})
    for _ in range(2):
        (shown,) = detslurm("e", "plot", 1, "norm", "--json").data["trials"]
        assert (shown["steps"], shown["values"]) == ([2, 4, 6, 8], [2.0, "NaN", 6.0, 8.0])
        trial.write_end(1, {"outcome": "completed", "exit_code": 0, "time": 2000.0})
        compact(experiment)


def test_what_can_not_be_plotted_is_explained(runs: Scene, detslurm: Detslurm) -> None:
    """With the names that there are."""
    for args, text in [
        (("accuracy",), "no trial shown has reported 'accuracy'. training has lr, top.5; "
                        "validation has loss"),
        (("loss", "--group", "training"), "'loss' in the group 'training'. training has lr"),
        (("-t", 99), "trial 99 of experiment 1 has not begun; these have: 1, 2, 3, 4, 5, 6"),
        (("--width", 39), "39 is not in the range 40<=x<=1000"),
    ]:  # fmt: skip
        said = detslurm("e", "plot", 1, *args)
        assert said.status in (1, 2) and said.out == "" and text in said.err
    empty = runs.experiment(1)
    assert "no trial of experiment 2 has begun" in detslurm("e", "plot", 2).err
    runs.run(empty, losses=[math.inf, -1.0, math.nan])
    assert "no value of 'loss' is positive" in detslurm("e", "plot", 2, "--log").err
    said = detslurm("e", "plot", 2)
    assert said.status == 0 and "1 of 3 values are infinite and left out" in said.err
    runs.run(runs.experiment(1, about={"metric": None}), losses=[1.0])
    runs.run(runs.experiment(1), losses=[math.nan])
    assert "nothing but NaN was reported as 'loss'" in detslurm("e", "plot", 4).err
    assert "no searcher's metric: name one. validation has loss" in detslurm("e", "plot", 3).err


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_on_a_terminal_it_fits_and_is_coloured(runs: Scene, columns: int) -> None:
    """All of it is on the screen, so that no pager opens; NO_COLOR and ASCII are heeded."""
    colored = on_terminal("e", "plot", 1, columns=columns)
    lines = without_colors(colored).splitlines()
    assert "\x1b[36m" in colored and len(lines) <= 23
    assert max(map(len, lines)) <= columns
    if columns == 80:
        plain = on_terminal("e", "plot", 1, env={"NO_COLOR": "1"})
        assert "\x1b" not in plain and plain.splitlines() == lines
        dumb = on_terminal("e", "plot", 1, env={"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"})
        assert dumb.isascii() and "aaa" in dumb and "^" in dumb
