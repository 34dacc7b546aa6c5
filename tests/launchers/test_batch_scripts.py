"""The batch scripts that `detslurm batch-script` prints."""

from __future__ import annotations

import subprocess

from click.testing import CliRunner

from detslurm.cli.app import app
from tests.envelope import unwrap


def said(*words: str) -> str:
    done = CliRunner().invoke(app, ["batch-script", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_script_is_listed_with_its_purpose_and_is_good_bash() -> None:
    """A name and a sentence each; bash finds no fault in any of them."""
    rows = {row["name"]: row["purpose"] for row in unwrap(said("list", "--json"))}
    assert {"array", "plain", "torch"} <= rows.keys()
    for name, purpose in rows.items():
        assert purpose.endswith(".")
        script = said("print", name)
        assert script.startswith("#!/bin/bash\n")
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    """Nobody has to ask twice."""
    done = CliRunner().invoke(app, ["batch-script", "print", "nothing"])
    assert done.exit_code == 2
    assert "plain" in done.output
