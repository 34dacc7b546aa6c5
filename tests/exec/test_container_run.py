"""How a run in a container ended, and what code reads whose image lacks what it needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm.config.run_config import RunConfig
from detslurm.exec.container_run import ContainerRun, first_line

TERM = 128 + signal.SIGTERM


def container(workdir: Path) -> ContainerRun:
    return ContainerRun(RunConfig.of({"slurm": {"container": "podman"}}), workdir)


def test_a_container_that_a_preemption_ends_is_no_success(tmp_path: Path) -> None:
    """Podman ends with 0 at a SIGTERM: before the code has begun, and when the code is killed."""
    run = container(tmp_path)
    for of_starter in (0, 125):
        assert run.exit_status(of_starter, is_preempted=True) == TERM
    killed = [*first_line(tmp_path), "sh", "-c", "kill -9 $PPID"]
    subprocess.run(killed, check=False)
    assert run.exit_status(0, is_preempted=True) == TERM
    assert run.exit_status(137, is_preempted=True) == 137
    assert run.exit_status(0, is_preempted=False) == 0


@pytest.mark.parametrize("status", [0, 3, 125, 126, 127])
def test_the_status_of_the_code_counts(tmp_path: Path, status: int) -> None:
    """Not that of the program which has started the container."""
    run = container(tmp_path)
    subprocess.run([*first_line(tmp_path), "sh", "-c", f"exit {status}"], check=False)
    assert run.blame(status, "") is None
    assert run.exit_status(0, is_preempted=True) == status


def test_marks_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    """The code is a copy of its working directory."""
    subprocess.run([*first_line(tmp_path), "true"], check=True)
    assert container(tmp_path).blame(1, "") is not None
    assert container(tmp_path).status() is None


@pytest.mark.parametrize(
    "image, needed",
    [
        ("sys.version_info = (3, 9, 18)", "ImportError: detslurm needs Python 3.11 or later"),
        ("sys.modules['msgspec'] = None", "ModuleNotFoundError: detslurm needs msgspec"),
    ],
)
@pytest.mark.parametrize("module", ["detslurm.core", "detslurm.launch.torch_distributed"])
def test_an_image_without_what_code_needs(image: str, needed: str, module: str) -> None:
    """The last line of the traceback names it, in scripts and in launchers."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {image}; import {module}"],
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines()[-1].startswith(needed)
