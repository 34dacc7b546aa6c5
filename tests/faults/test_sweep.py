"""One fault of the file server, at whatever call, costs no run and no checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.experiments import agent_command, job_environment, submitted

CALLS_OF_AN_AGENT = 40
HERE = Path(__file__).parent
STRIDES = {
    "core_api": 11,
    "runner": 25,
    "search": 3,
    "tensorboard": 2,
    "sharded": 5,
    "pytorch_trial": 20,
    "deepspeed_trial": 25,
}
"""Every how manieth call fails: there are hundreds. `SWEEP_STRIDE=1` lets each of them fail."""


@pytest.fixture(scope="session")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets a call fail."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("counter") / "fault_counter.so"
    source = HERE / "fault_counter.c"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize("kind", STRIDES)
def test_a_fault_that_passes_costs_nothing(kind: str, counter: Path, tmp_path: Path) -> None:
    """The process goes on, and all that it saved and reported is there."""
    stride = os.environ.get("SWEEP_STRIDE", str(STRIDES[kind]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.sweep", kind, str(tmp_path), stride],
        env={**os.environ, "LD_PRELOAD": str(counter), "FAULTS_UNDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_agent_outlives_a_fault_at_its_start(
    counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code runs, whichever of the first calls fails, those for the module cache among them."""
    monkeypatch.setenv("FAULTS_UNDER", str(tmp_path / "store"))
    experiment = submitted(tmp_path, tmp_path / "store", "echo trained")
    environment = job_environment({**os.environ, "LD_PRELOAD": str(counter)})
    command = agent_command(experiment)
    for number in range(1, CALLS_OF_AN_AGENT, int(os.environ.get("SWEEP_STRIDE", "3"))):
        with subprocess.Popen(
            command,
            env={**environment, "FAULTS_AT": str(number)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            said = process.stdout.read()
        assert process.returncode == 0 and "trained" in said, (number, said)
