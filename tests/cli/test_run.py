"""`detslurm run` and `detslurm multirun`, as far as they go without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from detslurm.sdk.submission.command_line import hydra_command, name_of, random_space, without_flags
from tests.sdk.scenes import Scene

from .conftest import Detslurm

CPU = ("--config", "slurm.slot_type=cpu")


@pytest.fixture(autouse=True)
def project(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a script and an application."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("train.py", "app.py"):
        (folder / name).write_text("")
    monkeypatch.chdir(folder)
    return folder


def test_a_run_is_the_experiment_that_its_configuration_is(
    scene: Scene, project: Path, detslurm: Detslurm
) -> None:
    """It prints the same experiment.yaml that it writes into the experiment, overrides included."""
    words = ("--slots", 2, "--time", 90, "--pool", "gpu", *CPU, "--grid", "model.lr=0.1,[1,2],no")
    command = ("--", "python3", "train.py", "--model.lr", "-1", "--epochs=5", "--api-key=hush")
    shown = detslurm("run", "--print-config", *words, *command)
    assert shown.err == "--model.lr -1 is left out: each trial gets its own model.lr\n"
    assert yaml.safe_load(shown.out) == {
        "name": "train.py",
        "entrypoint": ["python3", "train.py", "--epochs=5", "--api-key=hush"],
        "hyperparameters": {"model.lr": {"type": "categorical", "vals": [0.1, [1, 2], "no"]}},
        "arguments": "flags",
        "searcher": {"name": "grid", "metric": "loss", "smaller_is_better": True},
        "resources": {"slots_per_trial": 2, "resource_pool": "gpu"},
        "slurm": {"time": 90, "slot_type": "cpu"},
    }
    assert scene.queue.requests == []

    done = detslurm("run", "--json", *words, *command)
    number = done.data["experiment_id"]
    assert len(done.data["trial_ids"]) == 3
    experiment = scene.store.experiment(number)
    assert (experiment.path / "config.yaml").read_text() == shown.out
    assert (experiment.code / "train.py").exists()
    config = detslurm("experiment", "config", number).out
    assert "--epochs=5" in config and "hush" not in config

    (project / "experiment.yaml").write_text(shown.out)
    again = detslurm("submit", "experiment.yaml", "--json").data["experiment_id"]
    configs = [scene.store.experiment(n).config() for n in (number, again)]
    for config_read in configs:
        config_read.pop("reproducibility")
    assert configs[0] == configs[1]


def test_multirun_is_a_grid_of_hydras_overrides(detslurm: Detslurm) -> None:
    words = ("python3", "app.py", "-m", "lr=1,2", "model=choice(a,b)", "x=3", "--config-name", "y")
    shown = yaml.safe_load(detslurm("multirun", "--print-config", "--metric", "acc", *words).out)
    assert shown["entrypoint"] == ["python3", "app.py", "--config-name", "y", "x=3"]
    assert (shown["arguments"], shown["searcher"]["name"]) == ("hydra", "grid")
    assert {name: spec["vals"] for name, spec in shown["hyperparameters"].items()} == {
        "lr": [1, 2],
        "model": ["a", "b"],
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --random lr=log:0:1 --trials 2 true", "log takes values above 0"),
        ("run --random lr=log:1:2 true", "add --trials N"),
        ("run --random lr=log:1e-4,1 --trials 2 true", "lr=log:1e-4,1: log:LOW:HIGH"),
        ("run --grid lr=log:1e-4:1 true", "--random draws from ranges"),
        ("run --random lr=1:2 --trials 2 true", "log:LOW:HIGH, int:LOW:HIGH, double:LOW:HIGH"),
        ("run --trials 2 true", "give values with --random"),
        ("run --grid a=1 --random b=1 --trials 2 true", "can't be combined"),
        ("run --grid a=1 --grid a=2 true", "a is given twice"),
        ("run --grid a true", "not of the form NAME=VALUES"),
        ("run --search optuna --trials 2 --random a=1,2 true", "name their metric with --metric"),
        ("run --follow --json true", "--follow can't be combined with --json"),
        ("run --paused --test-mode true", "--test-mode can't be combined with --paused"),
        ("run train.py", "write python3 train.py"),
        ("multirun python3 app.py x=glob(*)", "write the names, such as x=a,b"),
        ("multirun python3 app.py x=1", "use `detslurm run`"),
    ],
)
def test_refused(scene: Scene, detslurm: Detslurm, words: str, said: str) -> None:
    done = detslurm(*words.split())
    assert done.status != 0
    assert said in done.err
    assert scene.queue.requests == []


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("--lr 0.1 --b", "--b"),
        ("--lr=0.1 b", "b"),
        ("--lr -1e-3 b", "b"),
        ("--lr --b", "--b"),
        ("--lr -b", "-b"),
        ("--weight_decay 1 --weight-decay=2 --lrs 3", "--lrs 3"),
        ("x --lr", "x"),
    ],
)
def test_flags_that_the_search_sets_leave_the_command(words: str, kept: str) -> None:
    command = without_flags(["t", *words.split()], ["lr", "weight-decay"])
    assert command.entrypoint == ["t", *kept.split()]
    assert command.messages


def test_texts_for_a_shell_stay_texts() -> None:
    assert without_flags(["cd a && b"], []).entrypoint == "cd a && b"
    assert without_flags(["./b"], []).entrypoint == ["./b"]
    with pytest.raises(ValueError, match="has --lr 3 already"):
        without_flags(["python3 t.py --lr 3 | cat"], ["lr"])
    late = without_flags(["python3", "t.py", "--grid", "lr=1"], [])
    assert late.messages == ("python3 gets --grid: options of detslurm stand before the command",)


def test_spaces_of_drawn_values() -> None:
    texts = (
        "a=log:1e-4:1",
        "b=int:1:9",
        "c=double:-0.5:.5",
        "--d=x,null",
        "e=a:b,c",
        "f=001,0,-02,0.5",
    )
    base: dict[str, Any] = {"type": "log", "base": 10}
    assert random_space(texts) == {
        "a": {**base, "minval": -4, "maxval": 0},
        "b": {"type": "int", "minval": 1, "maxval": 9},
        "c": {"type": "double", "minval": -0.5, "maxval": 0.5},
        "d": {"type": "categorical", "vals": ["x", None]},
        "e": {"type": "categorical", "vals": ["a:b", "c"]},
        "f": {"type": "categorical", "vals": ["001", 0, "-02", 0.5]},
    }


@pytest.mark.parametrize(
    ("words", "entrypoint"),
    [
        ("python3 -m app -m x=1,2", "python3 -m app"),
        ("python3 -m pkg app.py --multirun x=1,2 a=1", "python3 -m pkg app.py a=1"),
        ("./app x=1,2 x=3 ~db", "./app ~db"),
        ("torchrun --nproc=2 app.py y=1 x=1,2", "torchrun --nproc=2 app.py y=1"),
    ],
)
def test_commands_of_hydra_without_their_sweeps(words: str, entrypoint: str) -> None:
    command, space = hydra_command(words.split())
    assert command.entrypoint == entrypoint.split()
    assert list(space) == ["x"]


def test_names_are_those_of_scripts() -> None:
    assert name_of(["python3", "src/train.py", "--x", "y.py"]) == "train.py"
    assert name_of("cd a && python3 b.py | tee c") == "b.py"
    assert name_of(["python3", "-m", "pkg.train"]) == "pkg.train"
    assert name_of(["./a/run", "x"]) == "run"
