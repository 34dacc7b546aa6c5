"""Commands that do not exist, and scripts that call `det`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.cli import det_tables
from detslurm.cli.det import NoMeaning, translate
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import YAML, Scene


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("experimnt",), "; did you mean 'experiment'?"),
        (("descibe", "7"), "; did you mean"),
        (("trial", "descibe", "12"), "; did you mean 'describe'?"),
        (("job", "scancel", "12"), "'scancel'"),
    ],
)
def test_a_slip_of_the_finger(detslurm: Detslurm, words: tuple[str, ...], answer: str) -> None:
    """It does nothing, and names the command that was meant."""
    result = detslurm(*words)
    assert result.status == 2
    assert "no such command" in result.err and answer in result.err


def det(*args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "detslurm.compat", "det", *args]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ | env)


def test_a_script_that_calls_det(scene: Scene, tmp_path: Path) -> None:
    """Its commands work with det's options, and JSON is det's: without an envelope."""
    env = {"DETSLURM_ROOT": str(scene.root), "DETSLURM_SITE": ""}
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    (tmp_path / "experiment.yaml").write_text(YAML)
    create = ("-m", "http://master:8080", "-u", "ada", "e", "create", "--paused", "--config")
    files = (str(tmp_path / "experiment.yaml"), str(code))
    done = det(*create, "name=x", "-p", *files, env=env | {"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Created experiment 1"
    assert "det: note: -m is ignored: there is no server" in done.stderr
    listed = det("e", "ls", "--pages", "all", "--json", env=env)
    assert [row["name"] for row in json.loads(listed.stdout)] == ["x"]
    assert det("e", "kill", "1", env=env).stdout == "Killed experiment 1\n"
    refused = det("master", "config", env=env)
    assert refused.returncode == 1
    assert "det: error: `det master` has no meaning here: there is no server" in refused.stderr


def test_what_would_do_something_else_is_refused() -> None:
    """Leaving it out would start a training that was meant as a test."""
    assert translate(["t", "lc", "7"]).words == ["trial", "list-checkpoints", "7"]
    assert translate(["-u", "ada", "preview-search", "x"]).words == ["preview-search", "x"]
    assert translate([]).words == ["--help"]
    assert translate(["t", "describe", "1", "--metrics"]).words[-1] == "--metrics"
    assert translate(["e", "download", "1", "-q"]).words[-1] == "-q"
    assert translate(["e", "create", "-t", "x", "."]).words[-3:] == ["-t", "x", "."]
    for words in (
        ["e", "create", "--local", "x", "."],
        ["e", "create", "--project_id=1", "x"],
        ["t", "describe", "1", "--metrics-summary", "--csv"],
    ):
        with pytest.raises(NoMeaning):
            translate(words)


def test_the_commands_that_det_documents(scene: Scene) -> None:
    """Groups list, `--metrics --csv` prints tables, and folders can be made and described."""
    env = {"DETSLURM_ROOT": str(scene.root), "DETSLURM_SITE": ""}
    scene.run(scene.experiment(name="one"), losses=[0.5], end="completed")
    assert det("e", "--csv", env=env).returncode == 2
    assert "one" in det("e", env=env).stdout
    described = det("e", "describe", "1", "--metrics", "--csv", env=env).stdout
    experiments, trials, workloads = described.split("\n\n")
    assert experiments.splitlines()[0].startswith("id,") and "COMPLETED" in experiments
    assert trials.count("\n") == 1
    assert ",validation," in workloads and ",0.5" in workloads
    assert "Workloads:" in det("e", "describe", "1", "--metrics", env=env).stdout
    made = det("w", "create", "vision", "--agent-uid", "7", env=env)
    assert made.returncode == 0 and "vision/PROJECT` makes the workspace" in made.stderr
    assert det("p", "create", "vision", "digits", env=env).returncode == 0
    assert det("p", "create", "vision", "a/b", env=env).returncode == 1
    assert det("e", "move", "1", "vision", "digits", env=env).returncode == 0
    (folder,) = json.loads(det("p", "describe", "vision", "digits", "--json", env=env).stdout)
    assert (folder["project"], folder["experiments"]) == ("digits", 1)
    assert "digits" in det("w", "describe", "vision", env=env).stdout
    assert det("p", "describe", "vision", "none", env=env).returncode == 1


def test_words_of_det_that_have_another_name_here() -> None:
    """Each becomes the command that does it."""
    for words, wanted in (
        ("-v", "--version"),
        ("j", "job list"),
        ("t", "trial"),
        ("e unpause 7", "experiment activate 7"),
        ("j u 7 -p 3", "job update 7 -p 3"),
        ("tensorboard start --trial-ids 3", "tensorboard start --in-job --trial 3"),
        ("command", "cmd list"),
        ("cmd run -d --config a=1 --context . nvidia-smi -w 3 -v", None),
    ):
        assert translate(words.split()) == ((wanted or words).split(), [])
    started = translate(["shell", "start", "--passphrase", "-d", "--", "-L", "1:a:2"])
    assert started.words == ["shell", "start", "-d", "--", "-L", "1:a:2"]
    for words, reason in (
        ("e set log-retention 7 --days 3", "logs are kept as long as their experiment"),
        ("w delete vision", "a folder is there while an experiment is in it"),
        ("a disable n1", "nodes are the administrators'"),
        ("cmd run -v /data:/data ls", "`bind_mounts` of the configuration"),
        ("command set priority 7 3", "`detslurm job update ID --priority N`"),
    ):
        with pytest.raises(NoMeaning, match=reason):
            translate(words.split())


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        ("experiment create", "--publish", ""),
        ("experiment create", "-p", ""),
        ("experiment list", "--pages", "all"),
        ("trial logs", "--allocation-id", "3"),
        ("checkpoint download", "--mode", "auto"),
        ("shell start", "--passphrase", ""),
        ("shell start", "-c", "."),
        ("notebook start", "--no-browser", ""),
        ("tensorboard start", "-w", "vision"),
        ("workspace list", "--sort-by", "name"),
        ("workspace create", "--agent-uid", "7"),
        ("template create", "--workspace", "vision"),
    ],
)
def test_an_option_that_means_nothing_is_named(words: str, option: str, value: str) -> None:
    """It is left out with its value and a note; the same option stays where it has a meaning."""
    found, notes = translate([*words.split(), option, *value.split(), "last"])
    group, command = words.split()
    added = det_tables.ADDED.get(words, ())
    assert (found, len(notes)) == ([group, command, *added, "last"], 1)
    assert notes[0] == f"{option} is ignored: {det_tables.IGNORED[group][option].why}"
    assert translate(["job", "list", "--limit", "3"]) == (["job", "list", "--limit", "3"], [])
