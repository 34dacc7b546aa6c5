"""The shell of a batch script, run by bash with programs that say how they were called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detslurm import _start
from detslurm.slurm import JobRequest
from detslurm.slurm.resubmit import runner_command
from detslurm.slurm.shell_lines import command_line

SAYS = '#!/bin/bash\nprintf "%s\\n" "$0" "$@"\n'


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python environment whose path has a space, as it is while a job is submitted."""
    programs, package = tmp_path / "an env" / "bin", tmp_path / "an env" / "lib" / "python3.11"
    for folder in (programs, package):
        folder.mkdir(parents=True)
    (package / "_start.py").write_text("")
    for name in ("python3", "python3.11"):
        (programs / name).write_text(SAYS)
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python3.11"))
    monkeypatch.setattr(_start, "__file__", str(package / "_start.py"))
    return tmp_path / "an env"


def called(folder: Path, request: JobRequest, change: Path | None = None) -> list[str]:
    script = command_line(request)
    if change is not None:
        change.unlink()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=folder)
    return done.stdout.splitlines()


@pytest.mark.parametrize("gone", [None, "lib/python3.11/_start.py", "bin/python3.11"])
def test_a_job_outlives_a_new_installation(
    environment: Path, tmp_path: Path, gone: str | None
) -> None:
    """At the same place, of another Python or version, while it waits in the queue."""
    command = runner_command(tmp_path / "experiments" / "7", 3)
    request = JobRequest(name="x", command=command, folder=tmp_path)
    words = called(tmp_path, request, environment / gone if gone else None)
    if gone is None:
        assert words == list(command)
    else:
        python = str(environment / "bin" / "python3")
        assert words == [python, "-P", "-m", "detslurm.exec.runner", *command[4:]]


def test_any_other_command_is_as_it_was_given(tmp_path: Path) -> None:
    request = JobRequest(name="x", command=("echo", "a b"), folder=tmp_path)
    assert command_line(request) == "exec echo 'a b'"


def test_an_agent_starts_without_the_file_too(environment: Path) -> None:
    """A runner may be older than the installation."""
    module = "detslurm.exec.agent"
    assert _start.command(module)[1:] == ["-PS", _start.__file__, module]
    Path(_start.__file__).unlink()
    assert _start.command(module)[1:] == ["-P", "-m", module]
