"""What people type who come from Slurm, Determined or git, and scripts that call `det`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.cli.det import NoMeaning, translate
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import YAML, Scene


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("squeue",), "detslurm job list"),
        (("sacct", "-j", "7"), "detslurm trial describe"),
        (("scancel", "7"), "detslurm experiment cancel ID"),
        (("det", "e", "ls"), "leave out `det`: `detslurm e ls`"),
        (("sinfo",), "detslurm agent list"),
        (("log",), "detslurm experiment logs ID"),
        (("diff", "1", "2"), "detslurm compare"),
        (("sweep",), "searcher"),
        (("e", "resume", "7"), "detslurm experiment activate ID"),
        (("e", "rm", "7"), "detslurm experiment delete ID"),
        (("experimnt",), "did you mean 'experiment'?"),
    ],
)
def test_known_words_lead_to_the_right_command(
    detslurm: Detslurm, words: tuple[str, ...], answer: str
) -> None:
    """They do nothing: the answer says what does it here."""
    result = detslurm(*words)
    assert result.status == 2
    assert f"no such command {words[0] if words[0] != 'e' else words[1]!r}" in result.err
    assert answer in result.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("trial", "stop", "12"), "; did you mean 'kill'?"),
        (("t", "show", "12"), "; did you mean 'describe'?"),
        (("checkpoint", "remove", "1b4e"), "; did you mean 'delete' or 'rm'?"),
        (("model", "remove", "net"), "; did you mean 'delete'?"),
        (("tpl", "del", "x"), "; did you mean 'remove'?"),
        (("trial", "rm", "12"), None),
        (("job", "scancel", "12"), None),
        (("trial", "descibe", "12"), "; did you mean 'describe'?"),
    ],
)
def test_the_same_word_in_another_group(
    detslurm: Detslurm, words: tuple[str, ...], answer: str | None
) -> None:
    """An id of a trial is no id of an experiment: what is done to these is not the answer."""
    result = detslurm(*words)
    assert result.status == 2
    assert f"no such command {words[1]!r}" in result.err
    assert "experiment" not in result.err
    assert result.err.rstrip().endswith(answer or repr(words[1]))


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
        ["e", "describe", "1", "--metrics"],
        ["t", "describe", "1", "--metrics-summary", "--csv"],
    ):
        with pytest.raises(NoMeaning):
            translate(words)
