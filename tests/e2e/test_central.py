"""One installation for all users of a cluster: their code runs in Pythons of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from detslurm import __version__
from scripts.dist import build
from tests.e2e.desk import Desk
from tests.envelope import unwrap
from tests.test_packages import ROOT, borrowing_python

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

TRAIN = """\
    import importlib.util, sys
    from detslurm import core

    assert importlib.util.find_spec("click") is None, sys.executable
    with core.init() as context:
        context.train.report_validation_metrics(steps_completed=1, metrics={"loss": 0.5})
    print("trained in", sys.prefix)
    """


class Central(NamedTuple):
    """An installation, and an environment of a user's that has nothing of ours."""

    place: Path
    environment: Path


@pytest.fixture
def central(desk: Desk, tmp_path: Path) -> Iterator[Central]:
    assert desk.user.cwd is not None
    root = desk.user.cwd.parent / "central"
    subprocess.run([ROOT / "scripts" / "copy.sh", tmp_path / "sources"], check=True)
    wheel = build(tmp_path / "dist", tmp_path / "sources", 1_700_000_000)[1]
    install = [ROOT / "packaging" / "module" / "install.sh", root, root / "modules", wheel]
    env = {"PYTHON": str(borrowing_python(tmp_path)), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    subprocess.run(install, env={**os.environ, **env}, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "mine"], check=True)
    yield Central(root / "detslurm" / __version__, root / "mine")
    shutil.rmtree(root)


def test_code_needs_nothing_of_ours_and_outlives_a_removed_version(
    desk: Desk, central: Central
) -> None:
    config = desk.project(TRAIN)
    path = f"{central.environment}/bin:{central.place}/only:{desk.user.env['PATH']}"

    def submit(*options: str) -> int:
        words = ("detslurm", "submit", str(config), "--json", *options)
        return int(unwrap(desk.user.run(*words, env={"PATH": path}).stdout)["experiment_id"])

    first, waiting = submit(), submit("--paused")
    desk.wait_for_state(first, "COMPLETED")
    assert f"trained in {central.environment}" in desk.log(first)
    newer = central.place.with_name("9.0.0")
    central.place.rename(newer)
    python = str(newer / "bin" / "python3")
    desk.user.run(python, "-m", "detslurm", "experiment", "activate", str(waiting))
    desk.wait_for_state(waiting, "COMPLETED")
    assert f"trained in {central.environment}" in desk.log(waiting)
    outputs = desk.experiment(waiting).jobs.glob("slurm-*.out")
    assert f"{newer}/bin/python3 goes on" in "".join(path.read_text() for path in outputs)
