"""The recipes that need Slurm: modules, conda and e-mail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from tests.docs.pages import REPOSITORY, blocks
from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster

# No module system and no conda is here: shell functions answer for them.
MODULE = {"BASH_FUNC_module%%": '() { export LOADED="$*"; }'}
CONDA = "conda() { export ACTIVE=$2; }\n"


def test_modules_conda_and_an_email_at_the_end(desk: Desk) -> None:
    """The page's sections `slurm`, all in one: the code sees the environment, Slurm the address."""
    conda = desk.write("conda.sh", CONDA)
    wanted: dict[str, list[str]] = {}
    for block in blocks(REPOSITORY / "docs/recipes.md"):
        if block.text.startswith("slurm:\n"):
            text = block.text.replace("/opt/conda/etc/profile.d/conda.sh", str(conda))
            wanted |= yaml.safe_load(text)["slurm"]
    assert set(wanted) == {"modules", "setup", "sbatch_args"}
    config = desk.project("import os\nprint(os.environ['LOADED'], os.environ['ACTIVE'])")
    settings = [f"--config=slurm.{key}={yaml.safe_dump(value)}" for key, value in wanted.items()]
    user = replace(desk.user, env={**desk.user.env, **MODULE})
    number = Desk(user).submit(config, *settings)
    shown = desk.user.run("scontrol", "show", "job", desk.job(number)).stdout
    assert "MailUser=ada@example.org MailType=END,FAIL" in shown
    desk.wait_for_state(number, "COMPLETED")
    assert "load cuda/12.4 torch" in desk.log(number)
