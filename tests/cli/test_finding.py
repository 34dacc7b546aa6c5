"""Finding one experiment among many: lists, filters, orders, and what stands for an id."""

from __future__ import annotations

import math

import pytest

from detslurm.store import RunLog
from tests.cli.conftest import CommandResult, Detslurm
from tests.cli.terminals import on_terminal, without_colors
from tests.sdk.scenes import YAML, Scene


@pytest.fixture
def several(scene: Scene) -> Scene:
    """Four experiments of two users in two projects, in different states."""
    digits = {"workspace": "vision", "project": "digits"}
    first = scene.experiment(name="mnist-a", about={**digits, "labels": ["keep", "good"]})
    scene.run(first, losses=[0.5, 0.25], end="completed")
    second = scene.experiment(name="mnist-b", job="8", about={**digits, "owner": "bob"})
    scene.run(second, losses=[0.125], ref="8", end="error", reason="it failed")
    third = scene.experiment(name="cifar", job="9", about={"labels": ["keep"]})
    scene.run(third, losses=[0.75], ref="9", end="completed")
    scene.experiment(name="cifar", job="10")
    return scene


def ids(result: CommandResult) -> list[int]:
    assert result.status == 0, result.err
    return [row["id"] for row in result.data]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--state", "completed"), [1, 3]),
        (("--state", "ERROR", "--state", "ACTIVE"), [2, 4]),
        (("--label", "keep"), [1, 3]),
        (("--label", "keep", "--label", "good"), [1]),
        (("--name", "mnist*"), [1, 2]),
        (("--name", "mnist"), []),
        (("--user", "bob"), [2]),
        (("--workspace", "vision"), [1, 2]),
        (("--project", "Uncategorized"), [3, 4]),
        (("--project", "vision/digits"), [1, 2]),
        (("--project", "vision/Uncategorized"), []),
        (("--project", "vis*"), []),
        (("--project", "vis*/dig*"), [1, 2]),
        (("--sort", "best"), [2, 1, 3, 4]),
        (("--sort", "best", "--reverse"), [3, 1, 2, 4]),
        (("--sort", "name,best"), [3, 4, 1, 2]),
        (("--sort", "best", "--limit", "2"), [2, 1]),
        (("--sort", "duration", "--offset", "3"), [4]),
        (("--reverse",), [4, 3, 2, 1]),
        (("--limit", "2"), [3, 4]),
        (("--limit", "1", "--offset", "1", "--reverse"), [3]),
    ],
)
def test_lists_are_filtered_and_sorted(
    several: Scene, detslurm: Detslurm, options: tuple[str, ...], expected: list[int]
) -> None:
    """What has no value in a column stands last, whatever the order."""
    assert ids(detslurm("e", "list", *options, "--json")) == expected


def test_columns_are_chosen_by_name(several: Scene, detslurm: Detslurm) -> None:
    """In the order given; wrong ones are refused with the right ones."""
    out = detslurm("e", "list", "--columns", "name,best,labels", "--csv", "--limit", "4").out
    assert out.splitlines()[:2] == ["Name,Best,Labels", 'mnist-a,0.25,"keep, good"']
    wrong = detslurm("e", "list", "--columns", "nosuch")
    assert wrong.status == 2 and "no column nosuch; there are id, owner" in wrong.err
    assert detslurm("e", "list", "--sort", ",").status == 2
    shown = detslurm("e", "list", "--show-project").out
    assert shown.startswith(" Workspace") and "vision" in shown


def test_a_list_fits_the_terminal(several: Scene) -> None:
    """No line is wider; names are cut before columns that matter go, and --table cuts none."""
    several.experiment(name="a very long name that goes on and on, for " + "ever " * 9)
    for columns in (40, 60, 80, 120):
        shown = without_colors(on_terminal("e", "list", columns=columns))
        assert all(len(line) <= columns for line in shown.splitlines()), columns
        assert "COMPLETED" in shown and "a very long" in shown
    shown = without_colors(on_terminal("e", "list"))
    assert {"ID", "Name", "State", "Progress", "Trials", "Best"} <= set(
        shown.split("\n")[0].split()
    )
    whole = without_colors(on_terminal("e", "list", "--table", columns=60))
    assert "ever ever ever" in whole and "Resource Pool" in whole


def test_columns_that_were_asked_for_are_there(several: Scene) -> None:
    """Also where the terminal is too narrow for them."""
    names = "id,name,state,created,started,ended,duration,cluster"
    header = without_colors(on_terminal("e", "list", "--columns", names, columns=40)).split("\n")[0]
    assert [name.lower() for name in header.split()] == names.split(",")


def test_times_are_relative_on_a_terminal(several: Scene, detslurm: Detslurm) -> None:
    """And exact elsewhere."""
    assert "years ago" in without_colors(on_terminal("e", "list", columns=100))
    assert "1970-01-01" in detslurm("e", "list").out


def test_what_diverged_stands_last(several: Scene, detslurm: Detslurm) -> None:
    """In either direction, as what has no value; of projects, too."""
    for job, loss in (("11", math.nan), ("12", math.inf), ("13", 0.375)):
        digits = {"workspace": "vision", "project": "digits"}
        experiment = several.experiment(job=job, about=digits)
        several.run(experiment, losses=[loss], ref=job, end="completed")
    sort = ("--sort", "best", "--json")
    assert ids(detslurm("e", "list", *sort)) == [2, 1, 7, 3, 4, 5, 6]
    assert ids(detslurm("e", "list", *sort, "--reverse")) == [3, 7, 1, 2, 4, 5, 6]
    found = detslurm("project", "list-experiments", "vision", "digits", *sort, "--reverse")
    assert ids(found) == [7, 1, 2, 5, 6]


def test_trials_are_ranked(scene: Scene, detslurm: Detslurm) -> None:
    """By the searcher's metric, by another one, or by a column."""
    experiment = scene.experiment(3)
    for index, loss in enumerate([0.5, 0.25, 0.75]):
        scene.run(experiment, index, losses=[loss], ref=f"7_{index}", end="completed")
    command = ("e", "list-trials", 1, "--json")
    assert ids(detslurm(*command)) == [1, 2, 3]
    assert ids(detslurm(*command, "--top", 2)) == [2, 1]
    assert ids(detslurm(*command, "--sort-by", "loss", "--smaller-is-better", "false")) == [3, 1, 2]
    assert ids(detslurm(*command, "--sort-by", "id", "--reverse")) == [3, 2, 1]
    assert ids(detslurm(*command, "--sort-by", "id", "--reverse", "--top", 2)) == [3, 2]
    assert ids(detslurm(*command, "--sort-by", "loss", "--reverse", "--top", 2)) == [1, 2]
    wrong = detslurm(*command, "--sort-by", "los")
    assert wrong.status == 2 and "they have loss" in wrong.err


def test_trials_without_a_value_stand_last(scene: Scene, detslurm: Detslurm) -> None:
    """In either direction of a column, and the first ones are shown."""
    experiment = scene.experiment(3)
    for index in (2, 0):
        scene.run(experiment, index, losses=[0.5], ref=f"7_{index}", end="completed")
    command = ("e", "list-trials", 1, "--json", "--sort-by", "started")
    assert ids(detslurm(*command)) == [1, 3, 2]
    assert ids(detslurm(*command, "--reverse")) == [1, 3, 2]
    assert ids(detslurm(*command, "--reverse", "--top", 1)) == [1]


def test_trials_are_ranked_by_a_metric_within_another(scene: Scene, detslurm: Detslurm) -> None:
    """By the name that it has in curves and columns; what is no number is not suggested."""
    experiment = scene.experiment(2)
    for index, top in enumerate([0.5, 0.75]):
        trial = scene.run(experiment, index, ref=f"7_{index}")
        with RunLog.open(trial.records_path(1)) as records:
            metrics = {"top": {"1": 0.25, "5": top}, "note": "x"}
            records.commit({"t": "metrics", "group": "validation", "steps": 1, "metrics": metrics})
    command = ("e", "list-trials", 1, "--json", "--smaller-is-better", "false", "--sort-by")
    assert ids(detslurm(*command, "top.5")) == [2, 1]
    assert "they have top.1, top.5 (" in detslurm(*command, "top").err


def test_the_newest_is_called_last(several: Scene, detslurm: Detslurm) -> None:
    """Wherever an id goes, of experiments and of trials."""
    assert detslurm("e", "describe", "last", "--json").data["id"] == 4
    assert detslurm("e", "describe", "@-1", "--json").data["id"] == 4
    assert detslurm("e", "describe", "@-2,last", "--json").data[0]["id"] == 3
    assert detslurm("t", "describe", "@-3", "--json").data["id"] == 2
    several.client.stored(4).kill()
    several.run(several.store.experiment(4), ref="10", end="killed")
    assert detslurm("e", "delete", "last", "--yes").status == 0
    assert detslurm("e", "describe", "last", "--json").data["id"] == 3
    few = detslurm("e", "describe", "@-9")
    assert few.status == 1 and "fewer than 9 experiments of yours" in few.err
    assert "fewer than 9 trials of yours" in detslurm("t", "describe", "@-9").err


def test_a_name_stands_for_an_id(several: Scene, detslurm: Detslurm) -> None:
    """A glob for several where several may be given; what may mean several is refused."""
    assert detslurm("e", "describe", "mnist-a", "--json").data["id"] == 1
    assert [e["id"] for e in detslurm("e", "describe", "mnist*", "--json").data] == [1, 2]
    for words in (("e", "config", "mnist*"), ("e", "describe", "cifar"), ("e", "plot", "c*")):
        result = detslurm(*words)
        assert result.status == 1 and result.out == ""
        assert "may be experiment" in result.err and "give the id" in result.err
    assert "3 (cifar), 4 (cifar)" in detslurm("e", "kill", "cifar").err
    missing = detslurm("e", "describe", "nosuch*")
    assert missing.status == 1 and "no name matches 'nosuch*'" in missing.err
    assert detslurm("t", "describe", "mnist-a").status == 2
    assert detslurm("e", "describe", "@2").status == 2


def test_names_that_look_like_something_else(scene: Scene, detslurm: Detslurm) -> None:
    """A name that an experiment has is meant before a glob, and may begin with a dash."""
    for name in ("lr[0]", "lr0", "-lr"):
        scene.experiment(name=name)
    assert detslurm("e", "describe", "lr[0]", "--json").data["id"] == 1
    assert detslurm("e", "describe", "lr[01]", "--json").data["id"] == 2
    assert detslurm("e", "describe", "--json", "--", "-lr").data["id"] == 3
    wrong = detslurm("e", "describe", "--", "-1")
    assert wrong.status == 2 and "ids are whole numbers from 1" in wrong.err


def test_projects_hold_experiments(several: Scene, detslurm: Detslurm) -> None:
    """They are listed with what is in them, and experiments move between them."""
    listed = detslurm("workspace", "list", "--json").data
    assert [(w["workspace"], w["projects"], w["experiments"], w["active"]) for w in listed] == [
        ("Uncategorized", 1, 2, 1),
        ("vision", 1, 2, 0),
    ]
    moved = detslurm("e", "move", "cifar*", "vision", "colors")
    assert moved.status == 0 and "Moved experiment 4 to vision/colors" in moved.out
    projects = detslurm("p", "list", "vision", "--json").data
    assert [(p["project"], p["experiments"]) for p in projects] == [("colors", 2), ("digits", 2)]
    assert detslurm("w", "list-projects", "vision", "--json").data == projects
    assert ids(detslurm("p", "list-experiments", "vision", "colors", "--json")) == [3, 4]
    described = detslurm("e", "describe", 3)
    assert "Project : vision/colors" in described.out
    assert detslurm("e", "move", 3, "a/b", "c").status == 1
    assert detslurm("p", "list", "nosuch").status == 1


def test_a_project_is_given_with_the_submission(scene: Scene, detslurm: Detslurm) -> None:
    """By the configuration's keys or the option, which wins."""
    config = scene.root.parent / "experiment.yaml"
    config.write_text(YAML + "workspace: vision\nproject: digits\n")
    code = scene.root.parent / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    assert detslurm("submit", config, code).status == 0
    assert detslurm("submit", config, code, "--project", "audio/words").status == 0
    assert detslurm("submit", config, code, "--project", "words: [1]").status == 0
    rows = detslurm("e", "list", "--json").data
    assert [(row["workspace"], row["project"]) for row in rows[1:]] == [
        ("audio", "words"),
        ("Uncategorized", "words: [1]"),
    ]
    assert (rows[0]["workspace"], rows[0]["project"]) == ("vision", "digits")
    assert detslurm("submit", config, code, "--project", "/x").status == 2
