"""The command line that all launchers share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detslurm.launch.arguments import UsageError, parse


def test_a_script_is_run_by_this_python() -> None:
    """So are modules; anything else is a command as it stands."""
    assert parse(["train.py", "--lr", "1"]) == ([], [sys.executable, "train.py", "--lr", "1"])
    assert parse(["-m", "pkg.train"]) == ([], [sys.executable, "-m", "pkg.train"])
    assert parse(["python3", "train.py"]) == ([], ["python3", "train.py"])


def test_an_executable_script_runs_itself(tmp_path: Path) -> None:
    """A path with the right to be executed is a command, whatever its name."""
    script = tmp_path / "train.py"
    script.touch(0o755)
    assert parse([str(script)]).command == [str(script)]
    script.chmod(0o644)
    assert parse([str(script)]).command == [sys.executable, str(script)]


def test_overrides_end_with_two_dashes() -> None:
    """Those of the script stay with the script."""
    assert parse(["--a", "1", "--", "run", "x"]) == (["--a", "1"], ["run", "x"])
    assert parse(["--", "run"]) == ([], ["run"])
    assert parse(["run", "--", "x"]) == ([], ["run", "--", "x"])
    module = [sys.executable, "-m", "pkg", "--nnodes=2", "--", "--trial"]
    assert parse(module[1:]) == ([], module)


def test_a_trial_class_is_trained_by_the_harness() -> None:
    """Both spellings of the option."""
    command = [sys.executable, "-m", "detslurm.pytorch.harness", "model.def:Trial"]
    assert parse(["--trial", "model.def:Trial"]) == ([], command)
    assert parse(["--a", "--", "--trial=model.def:Trial"]) == (["--a"], command)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "empty script is not allowed"),
        (["--a", "--"], "empty script is not allowed"),
        (
            ["--nnodes", "2", "train.py"],
            "--nnodes is not a script: options of the launcher end with",
        ),
        (["-n", "2", "train.py"], "`-n ... -- train.py`"),
        (["--a", "--", "--b", "train.py"], "--b is not a script"),
        (["--trial", "m:C", "x"], "extra arguments to --trial"),
        (["--trial"], "expected one argument"),
        (["--a", "--", "--trial=train.py"], "expected MODULE:CLASS, not 'train.py'"),
    ],
)
def test_what_makes_no_sense_is_said(argv: list[str], said: str) -> None:
    """Each mistake has its words."""
    with pytest.raises(UsageError, match=said):
        parse(argv)
