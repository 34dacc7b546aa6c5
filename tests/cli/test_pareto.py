"""The Pareto front of a search with several objectives, as its user sees it."""

from __future__ import annotations

from pathlib import Path

from detslurm.look.top.cells import TRIALS, trial_rows
from detslurm.sdk.experiments.snapshot import read
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene
from tests.sdk.test_pareto import searched


def test_describe_names_the_front(scene: Scene, detslurm: Detslurm) -> None:
    """The objectives, the one best trial, all of the front; the table has a column for each."""
    searched(scene)
    text = detslurm("experiment", "describe", 1).out
    objectives = "loss (smaller is better), speed (larger is better), memory <= 40"
    assert f"Searcher : grid on {objectives}\n" in text
    assert "Best : loss 0.4, speed 1, memory 10 (trial 2)\n" in text
    assert "Pareto front : trials 2, 4, 6\n" in text
    kept = "the best and the latest of each trial; the Pareto front"
    assert f"Checkpoints kept : {kept}\n" in text
    data = detslurm("experiment", "describe", 1, "--json").data
    assert data["best_trial"] == 2
    assert [trial["front"] for trial in data["trials"]] == [False, True, False, True, False, True]
    assert data["trials"][2]["objectives"] == {"loss": 0.1, "speed": 9.0, "memory": 50.0}


def test_trials_are_listed_front_by_front(scene: Scene, detslurm: Detslurm) -> None:
    """Those that break a constraint come last; those without a result are not among the best."""
    searched(scene)
    rows = detslurm("experiment", "list-trials", 1, "--top", 9, "--csv").out.splitlines()
    names = rows[0].split(",")
    assert [row.split(",")[0] for row in rows[1:]] == ["2", "4", "6", "1", "3"]
    assert {"loss", "speed", "memory", "Pareto"} <= set(names)
    marks = [next((m for m in ("front", "infeasible") if m in row), "") for row in rows[1:]]
    assert marks == ["front", "front", "front", "", "infeasible"]
    found = detslurm("experiment", "list-trials", 1, "--json").data
    assert [trial["feasible"] for trial in found] == [True, True, False, True, None, True]


def test_top_shows_all_objectives(scene: Scene) -> None:
    """Of each trial with a result, and whether it is on the front."""
    one = read(searched(scene))
    best = [row[TRIALS.index("Best")] for row in trial_rows(one, one.trial_rows.values()).values()]
    assert best[:3] == ["0.5, 3, 10", "0.4, 1, 10 (front)", "0.1, 9, 50"]


def test_lists_of_checkpoints_mark_the_front(scene: Scene, detslurm: Detslurm) -> None:
    """The front of the whole experiment, also in a list of some of its checkpoints."""
    searched(scene)
    found = detslurm("checkpoint", "list", "-e", 1, "--json").data
    assert [one["uuid"] for one in found if one["front"]] == ["c1", "c3", "c5"]
    best = detslurm("experiment", "list-checkpoints", 1, "--best", 4, "--json").data
    assert [(one["uuid"], one["front"]) for one in best] == [
        ("c1", True), ("c3", True), ("c5", True), ("c0", False),
    ]  # fmt: skip
    for trial, front in ((1, False), (2, True)):
        for command in (["checkpoint", "list", "-t"], ["trial", "list-checkpoints"]):
            text = detslurm(*command, trial, "--csv").out
            assert "loss,speed,memory,Pareto" in text and ("front" in text) is front


def test_the_front_is_downloaded(scene: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """`--front` copies all its checkpoints, and `--best` the best by the first metric of them."""
    searched(scene)
    for options, names in ((["--front"], ["c1", "c3", "c5"]), (["--best"], ["c1"])):
        to = ["-o", tmp_path / options[0]]
        done = detslurm("experiment", "download", 1, "-q", "--json", *options, *to)
        assert [one["uuid"] for one in done.data] == names
    refused = detslurm("experiment", "download", 1, "--front", "--top-n", 2)
    assert refused.status == 2 and "can't be combined" in refused.err


def test_a_single_metric_is_shown_as_ever(scene: Scene, detslurm: Detslurm) -> None:
    """Nothing of fronts is in its tables and its JSON."""
    scene.run(scene.experiment(), losses=[0.5], end="completed")
    for command in (["describe", 1], ["list-trials", 1], ["list"]):
        for form in ("--json", "--csv"):
            text = detslurm("experiment", *command, form).out.lower()
            assert "front" not in text and "pareto" not in text and "objectives" not in text
