"""`submit` refuses `arguments` that do not fit the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.scenes import Scene

from .conftest import Detslurm

BASE = """\
entrypoint: python3 train.py --data x
searcher: {name: grid, metric: loss}
slurm: {slot_type: cpu}
hyperparameters: {weight_decay: 0.1, depth: 2, amp: {type: categorical, vals: [false, true]}}
arguments: flags
"""
ARGPARSE = """\
import argparse
parser = argparse.ArgumentParser()
for name in ("data", "depth", "weight-decay"):
    parser.add_argument(f"--{name}")
parser.parse_args()
"""
CLICK = """\
import click
@click.command
@click.option("--depth")
@click.option("--weight_decay")
@click.option("--amp/--no-amp")
def main(**options): ...
main()
"""


@pytest.fixture
def project(scene: Scene, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "experiment.yaml").write_text(BASE)
    return folder


def test_a_test_refuses_flags_that_help_lacks(
    scene: Scene, project: Path, detslurm: Detslurm
) -> None:
    """Only a test runs the script, and only a script that has a parser."""
    config, script = project / "experiment.yaml", project / "train.py"
    script.write_text(ARGPARSE)
    assert detslurm("submit", config, "--dry-run").status == 0
    refused = detslurm("submit", config, "--test-mode", "--dry-run")
    assert refused.status != 0
    assert "train.py doesn't take --amp, as its --help shows" in refused.err
    launched = "entrypoint=python3 -m detslurm.launch.mpi -n 1 -- train.py"
    assert (
        "--amp" in detslurm("submit", config, "--test-mode", "--dry-run", "--config", launched).err
    )
    for harmless in (
        CLICK,
        "import argparse; raise SystemExit(3)",
        "open('ran', 'w')  # and fire up argparse",
        "import fire",
    ):
        script.write_text(harmless)
        assert detslurm("submit", config, "--test-mode", "--dry-run").status == 0
    assert not (project / "ran").exists()
    assert scene.queue.requests == []


def test_help_may_name_the_outer_option_alone(
    scene: Scene, project: Path, detslurm: Detslurm
) -> None:
    """As that of a LightningCLI, which takes `--model.lr`."""
    (project / "train.py").write_text(ARGPARSE.replace('"depth"', '"model"'))
    space = "hyperparameters: {model: {lr: 1}}\n"
    (project / "experiment.yaml").write_text(
        "".join(space if "hyper" in line else line for line in BASE.splitlines(keepends=True))
    )
    done = detslurm("submit", project / "experiment.yaml", "--test-mode", "--dry-run")
    assert done.status == 0, done.err


def test_a_file_of_the_code_is_not_replaced(
    scene: Scene, project: Path, detslurm: Detslurm
) -> None:
    (project / "train.py").write_text("")
    (project / "conf").mkdir()
    (project / "conf/a.yaml").write_text("lr: 1")
    words = ("submit", project / "experiment.yaml", "--dry-run", "--config")
    refused = detslurm(*words, "arguments={file: ./conf/a.yaml}")
    assert refused.status != 0
    assert "the code has a file ./conf/a.yaml, which it would replace" in refused.err
    assert detslurm(*words, "arguments={file: conf/b.yaml}").status == 0
